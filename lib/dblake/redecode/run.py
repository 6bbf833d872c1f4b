"""Landing decoded again, from a batch on: what a mended decoder makes of history takes the place of what was there.

Three steps. The same Reconciler as ever writes what it makes of those batches into tables of their own; what lies
before them stays where it is, and is read there, so nothing is copied and no file of another table depended on. The
two are compared, and the result is kept (``redecoded``). Then the new rows replace the old in one commit for each
table: readers see the one or the other, the version before can be read until upkeep removes its files, and no folder is
renamed, which an object store could not do at once. Positions stay as they are, and so do subscribers' checkpoints.

Promises to go on after a kill: before the comparison with the tables that were written, if it is still the same
decoder; after it by finishing the swap before anything else. A reconcile that runs beside it stops when events have
been swapped (SupersededByRedecode), and what it appended since then is decoded again in a second round. State tables of which
events differ are built anew by state (``restate``).
"""

from __future__ import annotations

import hashlib
import logging
from functools import reduce
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import retry, retry_if_exception_type, stop_after_attempt

import dblake
from dblake.core.errors import UsageError
from dblake.core.failpoints import failpoint
from dblake.events.schema import POSITION
from dblake.lake.layout import Paths, StagedPaths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch, record_batch
from dblake.landing.columns import BATCH
from dblake.reconcile.reconciler import Reconciler
from dblake.reconcile.stream import as_session, decoder_error, size_in_bytes
from dblake.redecode.compare import compared
from dblake.redecode.ledger import Run, compared_run, done_run, note_compared, note_done, read_run
from dblake.redecode.preconditions import require_landing
from dblake.spark.conflicts import retry_on_conflict

logger = logging.getLogger(__name__)

#: In the order in which they are swapped, each with what names a row and the column told as its letter. Events come
#: last: what refers to schemas finds them, and a reconcile beside looks at events.
_TABLES = {
    "schemas": (("schema_id", "table", *POSITION), None),
    "windows": (("chunk_id", "table", "lease_epoch", "batch"), "status"),
    "events": (POSITION, "op"),
}


def decode_again(spark: SparkSession, paths: Paths, first: int, *, max_bytes_per_trigger: str = "256m") -> list[Run]:
    """Decodes batches from ``first`` on anew, compares and swaps; returns what each round of it came to.

    Raises LandingGap if landing no longer holds all that takes.
    """
    decoded = newest_batch(paths.events, Application.reconcile(paths.source))
    if first > decoded:
        raise UsageError(
            f"events reach batch {decoded}: nothing from batch {first} on has been decoded yet",
            next_step="run reconcile without --from",
        )
    work = _Work(spark, paths, max_bytes_per_trigger)
    rounds = []
    run = work.unfinished()
    if run:
        logger.warning("finishing what was begun: batches %d to %d", run.first, run.last)
        rounds.append(run)
        late = work.finish(run)
    if run is None or (run.first, run.decoder) != (first, work.decoder):
        run = work.compare(first, decoded)
        rounds.append(run)
        late = work.finish(run)
    if late > run.last:
        # Appended before events were swapped, so by whichever decoder and beside whichever history.
        rounds.append(work.compare(run.last + 1, late))
        work.finish(rounds[-1])
    return rounds


class _Work:
    """What stays the same from round to round."""

    def __init__(self, spark: SparkSession, paths: Paths, max_bytes_per_trigger: str) -> None:
        self._spark, self._paths = spark, paths
        self._bytes = size_in_bytes(max_bytes_per_trigger)
        self._application = Application.redecode(paths.source)
        self.decoder = _decoder()

    def unfinished(self) -> Run | None:
        """The run that was compared and is not done."""
        number = compared_run(self._paths)
        return read_run(self._paths, number) if number > done_run(self._paths) else None

    def compare(self, first: int, last: int) -> Run:
        """Decodes these batches beside what is there, and notes how the two differ."""
        run = Run(compared_run(self._paths) + 1, self.decoder, first, last, ())
        require_landing(self._spark, self._paths, first, last)
        beside = self._beside(run)
        self._decode(beside, run)
        failpoint("again.decoded")
        # Upkeep may have removed old landing while it was being read.
        require_landing(self._spark, self._paths, first, last)
        found = [
            compared(self._rows(getattr(self._paths, name), run), self._rows(getattr(beside, name), run), *told)
            .withColumn("of", F.lit(name))
            for name, told in _TABLES.items()
        ]
        note_compared(self._spark, self._paths, run, reduce(DataFrame.unionByName, found))
        failpoint("again.compared")
        return read_run(self._paths, run.number)

    def finish(self, run: Run) -> int:
        """Puts what a run decoded in place of what was there; returns up to where others may have appended by then."""
        beside = self._beside(run)
        # Without its folder it was swapped before, or events were removed since to be made from the start.
        if DeltaTable.is_deltatable(beside.events):
            for name in _TABLES:
                self._swap(name, getattr(self._paths, name), getattr(beside, name), run)
                failpoint(f"again.{name}_swapped")
        late = _stop_others(self._paths)
        failpoint("again.others_stopped")
        _remove(self._spark, self._paths.again)
        failpoint("again.removed")
        note_done(self._paths, run.number)
        logger.info("batches %d to %d are decoded again", run.first, run.last)
        return late

    def _beside(self, run: Run) -> StagedPaths:
        folder = f"{self._paths.again}/{run.number}-{run.first}-{run.decoder}"
        return StagedPaths(self._paths.warehouse, self._paths.source, folder)

    def _decode(self, beside: StagedPaths, run: Run) -> None:
        reconciler = Reconciler(as_session(self._spark), beside, (self._paths, run.first))
        try:
            reconciler.catch_up()
            for batch in reconciler.landing.portions(run.first, run.last, self._bytes):
                reconciler.reconcile(batch)
        except PySparkException as error:
            raise decoder_error(error) or error from None

    def _rows(self, path: str, run: Run) -> DataFrame:
        return self._spark.read.format("delta").load(path).where(_batches(run))

    def _swap(self, name: str, old: str, new: str, run: Run) -> None:
        if newest_batch(old, self._application) >= run.number:
            return
        if any(line.differs for line in run.lines if line.of == name):
            self._replace(old, new, run)
        else:
            record_batch(old, self._application, run.number)

    @retry_on_conflict
    def _replace(self, old: str, new: str, run: Run) -> None:
        with commit_lock(old):
            (
                self._rows(new, run).write.format("delta").mode("overwrite").option("replaceWhere", _batches(run))
                .options(txnAppId=self._application, txnVersion=run.number).save(old)
            )


def _batches(run: Run) -> str:
    return f"{BATCH} >= {run.first} AND {BATCH} <= {run.last}"


@retry(retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(8), reraise=True)
def _stop_others(paths: Paths) -> int:
    """Makes appends to events that are under way fail; returns the newest batch that came before."""
    application = Application.reconcile(paths.source)
    with commit_lock(paths.events):
        table = DeltaTable(paths.events)
        done = table.transaction_version(application) or 0
        # The number they read as they began is written once more: Delta takes none of their commits after this one.
        again = CommitProperties(app_transactions=[Transaction(application, done)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=again)
    return done


def _decoder() -> str:
    """A name for the code that decodes, another one as soon as any of it changes."""
    home, digest = Path(dblake.__file__).parent, hashlib.sha256()
    for file in sorted(home.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _remove(spark: SparkSession, folder: str) -> None:
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)
