"""Landing → events: a stream over landing that says which batches are new, and ``microbatch`` that reconciles them.

The tables say how far they are, by landing batch; Spark's stream checkpoint only saves looking at old files. So a
checkpoint that was lost costs time and nothing else, and one that is ahead of events is a LandingGap.

Promises that after ``reconcile_once`` all that had landed when it began is in events, or an error says what is not.
"""

from __future__ import annotations

import re
import threading
import time

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dblake.core.errors import DblakeError, LandingError, LandingGap, ReconcileError
from dblake.lake.layout import Paths
from dblake.lake.log import Application, newest_batch
from dblake.landing.columns import BATCH
from dblake.reconcile.microbatch import Reconciler, ranges

_FINISH_SECONDS = 30.0
"""How long a micro-batch may take to end once the job is asked to stop."""

# How Python's own words for an error of the decoder look inside what Spark makes of them.
_DECODERS_WORDS = re.compile(r"^dblake\.core\.errors\.ReconcileError: (.*?)(?:\. Next: (.*))?$", re.MULTILINE)


def reconcile_once(spark: SparkSession, paths: Paths, *, max_bytes_per_trigger: str = "256m") -> int:
    """Reconciles all that has landed by now; returns the newest batch in events."""
    run = _Run(spark, paths)
    landed = run.landed()
    run.start(run.stream(max_bytes_per_trigger).trigger(availableNow=True))
    run.wait(None)
    done = run.reconciler.done()
    if done < landed:
        raise run.ahead(range(done + 1, landed + 1))
    return done


def reconcile_until(
    stop: threading.Event, spark: SparkSession, paths: Paths, *, every: float, max_bytes_per_trigger: str = "256m"
) -> int:
    """Reconciles what lands, every so many seconds, until asked to stop; returns the newest batch in events."""
    run = _Run(spark, paths)
    query = run.start(run.stream(max_bytes_per_trigger).trigger(processingTime=f"{every} seconds"))
    while not stop.is_set() and not run.wait(1):
        pass
    # A micro-batch cut short is harmless, but what it has done is then done again.
    deadline = time.monotonic() + _FINISH_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        run.wait(1)
    query.stop()
    return run.reconciler.done()


class _Run:
    """One run of the stream."""

    def __init__(self, spark: SparkSession, paths: Paths) -> None:
        if not DeltaTable.is_deltatable(paths.landing):
            raise LandingError(
                f"source {paths.source} has no landing table yet", next_step="run capture, then this again"
            )
        self._spark = spark
        self._paths = paths
        self._checkpoint = paths.stream_checkpoint("reconcile")
        self._fresh = not self._checkpoint_exists()
        self._failure: DblakeError | None = None
        self._query: StreamingQuery | None = None
        self.reconciler = Reconciler(spark, paths)
        if self.landed() < self.reconciler.done():
            raise LandingGap(
                f"landing ends at batch {self.landed()}, but events reach batch {self.reconciler.done()}: landing was "
                "replaced, or brought back from before",
                next_step="remove this source's tables right of landing and its checkpoints, and reconcile again",
            )
        self.reconciler.catch_up()

    def landed(self) -> int:
        """The newest batch in landing."""
        return newest_batch(self._paths.landing, Application.capture(self._paths.source))

    def stream(self, max_bytes_per_trigger: str) -> DataStreamWriter:
        """The numbers of landing's batches, as they come; a commit that removes old ones brings none."""
        options = {"maxBytesPerTrigger": max_bytes_per_trigger, "skipChangeCommits": "true"}
        numbers = self._spark.readStream.format("delta").options(**options).load(self._paths.landing).select(BATCH)
        return numbers.writeStream.option("checkpointLocation", self._checkpoint).foreachBatch(self._micro_batch)

    def start(self, stream: DataStreamWriter) -> StreamingQuery:
        """Starts it."""
        self._query = stream.start()
        return self._query

    def wait(self, seconds: int | None) -> bool:
        """True once the stream has ended; raises what ended it."""
        assert self._query is not None
        try:
            return self._query.awaitTermination(seconds) is not False
        except PySparkException as error:
            raise self._failure or decoders_error(error) or error from None

    def ahead(self, batches: range) -> LandingGap:
        """The error for batches that the stream will not bring again."""
        return LandingGap(
            f"the stream checkpoint is past {ranges(batches)}, but events are not",
            next_step=f"remove {self._checkpoint} and run reconcile again: it takes up where events end",
        )

    def _micro_batch(self, numbers: DataFrame, _: int) -> None:
        try:
            done = self.reconciler.done()
            new = sorted(row[BATCH] for row in numbers.where(F.col(BATCH) > done).distinct().collect())
            if not new:
                return
            # A new checkpoint lists files by age, which maintenance changes: then only landing itself can tell.
            if new[0] > done + 1 and not self._fresh:
                raise self.ahead(range(done + 1, new[0]))
            self.reconciler.reconcile(new[-1])
        except DblakeError as error:
            self._failure = error
            raise
        except PySparkException as error:
            self._failure = decoders_error(error)
            raise

    def _checkpoint_exists(self) -> bool:
        path = self._spark._jvm.org.apache.hadoop.fs.Path(self._checkpoint + "/offsets")  # type: ignore[union-attr]
        return bool(path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()).exists(path))


def decoders_error(error: Exception) -> DblakeError | None:
    """The decoder's error, if that is what a Spark job failed with: on its way here it became text."""
    said = _DECODERS_WORDS.search(str(error))
    return ReconcileError(said[1], next_step=said[2] or "") if said else None
