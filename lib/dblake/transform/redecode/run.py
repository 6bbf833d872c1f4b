"""Decode landing again from a batch on, and replace the events that an earlier decoder wrote.

Three steps. The Reconciler writes those batches into staged tables; it reads rows of earlier batches from the current
tables, so nothing is copied. The staged and the current rows are compared, and the counts are recorded (``ledger``).
Then the staged rows replace the current ones, in one commit per table: readers see either version, and the old one
stays readable until maintenance removes its files. No folder is renamed, which an object store cannot do atomically.
Positions do not change, so subscribers' checkpoints stay valid.

Guarantee: a killed run resumes. Before its comparison is recorded it resumes with the staged tables, if the decoder is
the same (``decoder``); afterwards the next run first finishes the swap. A concurrent reconcile stops once events are
swapped (SupersededByRedecode); a second round decodes again what it appended until then. Rebuilding the state tables
whose events differ is left to ``state.restate``.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import reduce

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from dblake.base.core.errors import UsageError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.position import Position
from dblake.base.lake.commits import confirmed_commit
from dblake.base.lake.layout import Paths, StagedPaths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.storage import join
from dblake.base.lake.tables import has_table, open_table
from dblake.landing.columns import BATCH
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.reconcile.stream import decoder_error, size_in_bytes
from dblake.transform.redecode.compare import count_differences
from dblake.transform.redecode.decoder import fingerprint_decoder
from dblake.transform.redecode.ledger import (
    RedecodeRun,
    newest_compared_run,
    newest_finished_run,
    read_run,
    record_finished_run,
)
from dblake.transform.redecode.preconditions import require_landing
from dblake.transform.redecode.recording import collect_lines, record_comparison
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.spark.session import Session, as_session

logger = logging.getLogger(__name__)

_MAX_COMMIT_ATTEMPTS = 8

#: The tables in the order in which they are swapped, each with the identity of its rows and the column that is ``op``
#: in the ledger. Events come last: events need their schemas, and a concurrent reconcile detects the swap in events.
_TABLES = {
    "schemas": (("schema_id", "table", *Position.COLUMNS), None),
    "windows": (("chunk_id", "table", "lease_epoch", "batch"), "status"),
    "events": (Position.COLUMNS, "op"),
}


def redecode(
    spark: SparkSession | Session, paths: Paths, first: int, *, max_bytes_per_trigger: str = "256m"
) -> list[RedecodeRun]:
    """Decode all reconciled batches from ``first`` on again, compare and swap; return one run per round.

    Raises UsageError if no batch from ``first`` on is reconciled, and LandingGap if landing lacks rows that decide the
    events.
    """
    decoded = _require_decoded(paths, first)
    work = Redecode(spark, paths, max_bytes_per_trigger)
    rounds = []
    run = work.read_unfinished()
    if run:
        logger.warning("finishing an interrupted redecode: batches %d to %d", run.first, run.last)
        rounds.append(run)
        appended = work.finish(run)
    if run is None or (run.first, run.decoder) != (first, work.decoder):
        run = work.compare(first, decoded)
        rounds.append(run)
        appended = work.finish(run)
    if appended > run.last:
        # A concurrent reconcile appended these before the swap, perhaps with an older decoder and older history.
        rounds.append(work.compare(run.last + 1, appended))
        work.finish(rounds[-1])
    return rounds


def compare_redecoded(
    spark: SparkSession | Session, paths: Paths, first: int, *, max_bytes_per_trigger: str = "256m"
) -> RedecodeRun:
    """Decode all reconciled batches from ``first`` on again, and return how the result differs; replace nothing.

    Raises as ``redecode`` does.
    """
    last = _require_decoded(paths, first)
    return Redecode(spark, paths, max_bytes_per_trigger).compare_only(first, last)


def _require_decoded(paths: Paths, first: int) -> int:
    """Return the newest batch in events. Raises UsageError if it precedes ``first``."""
    decoded = newest_batch(paths.events, Application.reconcile(paths.source))
    if first > decoded:
        raise UsageError(
            f"events reach batch {decoded}: nothing from batch {first} on has been decoded yet",
            next_step="run reconcile without --from",
        )
    return decoded


class Redecode:
    """The redecode of one source: what every round shares."""

    def __init__(self, spark: SparkSession | Session, paths: Paths, max_bytes_per_trigger: str) -> None:
        self._session, self._paths = as_session(spark), paths
        self._spark = self._session()
        self._bytes = size_in_bytes(max_bytes_per_trigger)
        self._application = Application.redecode(paths.source)
        self.decoder = fingerprint_decoder()

    def read_unfinished(self) -> RedecodeRun | None:
        """Read the run whose comparison is recorded and whose swap is not finished; None if there is none."""
        number = newest_compared_run(self._paths)
        return read_run(self._paths, number) if number > newest_finished_run(self._paths) else None

    def compare(self, first: int, last: int) -> RedecodeRun:
        """Decode these batches into staged tables, and record how they differ from the current ones."""
        run = RedecodeRun(newest_compared_run(self._paths) + 1, self.decoder, first, last, ())
        counts = self._count(run, self._staged_paths(run))
        record_comparison(self._spark, self._paths, run, counts)
        failpoint("redecode.compared")
        return read_run(self._paths, run.number)

    def compare_only(self, first: int, last: int) -> RedecodeRun:
        """Decode these batches into tables of its own, return how they differ from the current ones, delete them."""
        run = RedecodeRun(0, self.decoder, first, last, ())
        folder = f"{self._paths.redecode_tables}-compared-{uuid.uuid4().hex}"
        staged = StagedPaths(self._paths.warehouse, self._paths.source, folder)
        try:
            return replace(run, lines=collect_lines(self._count(run, staged)))
        finally:
            _delete_folder(self._spark, folder)

    def _count(self, run: RedecodeRun, staged: StagedPaths) -> DataFrame:
        """Decode a run's batches into staged tables; return the counts of ``record_comparison``."""
        require_landing(self._spark, self._paths, run.first, run.last)
        self._decode(staged, run)
        failpoint("redecode.decoded")
        # Maintenance may have removed old landing while it was read.
        require_landing(self._spark, self._paths, run.first, run.last)
        counts = [
            count_differences(
                self._rows(getattr(self._paths, name), run), self._rows(getattr(staged, name), run), identity, op_column
            ).withColumn("of", F.lit(name))
            for name, (identity, op_column) in _TABLES.items()
        ]
        return reduce(DataFrame.unionByName, counts)

    def finish(self, run: RedecodeRun) -> int:
        """Swap a run's tables, then delete its staged ones; return the newest batch in events before the swap."""
        staged = self._staged_paths(run)
        # Without staged events the run swapped before, or events were removed since, to be rebuilt from landing.
        if has_table(staged.events):
            for name in _TABLES:
                self._swap(name, getattr(self._paths, name), getattr(staged, name), run)
                failpoint(f"redecode.{name}_swapped")
        appended = _reject_pending_appends(self._paths)
        failpoint("redecode.appends_rejected")
        _delete_folder(self._spark, self._paths.redecode_tables)
        failpoint("redecode.staged_deleted")
        record_finished_run(self._paths, run.number)
        logger.info("replaced the events of batches %d to %d", run.first, run.last)
        return appended

    def _staged_paths(self, run: RedecodeRun) -> StagedPaths:
        folder = join(self._paths.redecode_tables, f"{run.number}-{run.first}-{run.decoder}")
        return StagedPaths(self._paths.warehouse, self._paths.source, folder)

    def _decode(self, staged: StagedPaths, run: RedecodeRun) -> None:
        reconciler = Reconciler(self._session, staged, (self._paths, run.first))
        try:
            reconciler.catch_up()
            for batch in reconciler.landing.portions(run.first, run.last, self._bytes):
                reconciler.reconcile(batch)
        except PySparkException as error:
            raise decoder_error(error) or error from None

    def _rows(self, path: str, run: RedecodeRun) -> DataFrame:
        return self._spark.read.format("delta").load(path).where(_batch_condition(run))

    def _swap(self, name: str, current: str, staged: str, run: RedecodeRun) -> None:
        """Replace one table's rows of a run's batches; without differences only record the run."""
        if newest_batch(current, self._application) >= run.number:
            return
        if any(line.differs for line in run.lines if line.of == name):
            self._replace(current, staged, run)
        else:
            record_batch(current, self._application, run.number)

    @retry_on_conflict
    def _replace(self, current: str, staged: str, run: RedecodeRun) -> None:
        with commit_lock(current):
            (
                self._rows(staged, run).write.format("delta").mode("overwrite")
                .option("replaceWhere", _batch_condition(run))
                .options(txnAppId=self._application, txnVersion=run.number).save(current)
            )


def _batch_condition(run: RedecodeRun) -> str:
    return f"{BATCH} >= {run.first} AND {BATCH} <= {run.last}"


@retry(
    retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(_MAX_COMMIT_ATTEMPTS), reraise=True
)
def _reject_pending_appends(paths: Paths) -> int:
    """Make appends to events that are in progress fail; return the newest batch that was appended before."""
    application = Application.reconcile(paths.source)
    with commit_lock(paths.events):
        table = open_table(paths.events)
        done = table.transaction_version(application) or 0
        # Delta rejects a commit if its transaction identifier was written since it was read: write the same version.
        with confirmed_commit(paths.events) as metadata:
            unchanged = CommitProperties(metadata, app_transactions=[Transaction(application, done)])
            table.create_write_transaction([], "append", table.schema(), commit_properties=unchanged)
    return done


def _delete_folder(spark: SparkSession, folder: str) -> None:
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)
