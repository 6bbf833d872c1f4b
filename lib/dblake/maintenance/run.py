"""Upkeep of all tables of a source, beside every job that reads and writes them.

Small files are put together, rows past their time deleted, files nobody can reach any more removed. What bounds each
of it is the slowest reader: landing goes no further than reconcile has read and no window reaches back, events no
further than state has folded, tombstones only where state has stood since beyond them, files only once they have been
out of the table for longer than any reader is behind. How one table is kept is ``maintenance.compaction``'s, when that
may happen is ``config.MaintainConfig``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblake.config import MaintainConfig
from dblake.core.failpoints import failpoint
from dblake.core.names import split_qualified
from dblake.events.schema import POSITION
from dblake.lake.cleanup import clean_log
from dblake.lake.frontier import read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import Application, newest_batch, record_batch
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, HIGH, KIND, LEASE_EPOCH, RESUME_METADATA
from dblake.maintenance.compaction import SMALL_BYTES, compact, delete, delete_these, upkeep_session, vacuum
from dblake.maintenance.retention import old, superseded
from dblake.maintenance.tombstones import expired
from dblake.reconcile.batch_summary import survey
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.windows import endings, unanswered
from dblake.state.files import SMALL_FILE_BYTES

_MANY = 8
"""So many small files are worth putting together."""
_VACUUM_EVERY = timedelta(hours=24)
"""Looking for files to remove lists all of a table's folder."""
_COMMITS_LOOKED_AT = 1000
_LOG_HOURS = 24.0
"""Entries of a log stay so long; readers of a table begin at its newest version."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """What upkeep did to one table: its files before and after, rows deleted, and whether old files were removed."""

    table: str
    files_before: int
    files_after: int
    rows_deleted: int
    vacuumed: bool


def maintain(spark: SparkSession, paths: Paths, settings: MaintainConfig, *, parallel: int = 4) -> list[Kept]:
    """Keeps all tables that are there, several at a time."""
    upkeep = Upkeep(spark, paths, settings)
    with ThreadPoolExecutor(parallel, thread_name_prefix="maintain") as pool:
        runs = [pool.submit(run) for run in upkeep.runs().values()]
        return [run.result() for run in runs]


class Upkeep:
    """One run. All bounds are those of its beginning: readers only move on from there."""

    def __init__(self, spark: SparkSession, paths: Paths, settings: MaintainConfig) -> None:
        self._spark, self._now = upkeep_session(spark), datetime.now(UTC)
        self._paths, self._settings = paths, settings
        self._reconciled = min(
            newest_batch(path, Application.reconcile(paths.source))
            for path in (paths.schemas, paths.events, paths.windows)
        )
        self._frontier = read_frontier(paths)
        expiring = self._now - timedelta(days=settings.tombstone_days)
        self._expiring = read_frontier(paths, until=expiring)

    def runs(self) -> dict[str, Callable[[], Kept]]:
        """What there is to do, a call for each table that is there."""
        paths, frontier = self._paths, self._frontier
        states = sorted({*frontier.versions, *frontier.behind})
        wanted = [
            partial(self._keep_landing, "landing", paths.landing),
            partial(self._keep, "events", paths.events, self._expire_events),
            *(partial(self._keep_state, f"state {table}", paths.state(*split_qualified(table)), table)
              for table in states),
            partial(self._keep, "schemas", paths.schemas),
            partial(self._keep, "windows", paths.windows),
            partial(self._keep, "frontier", paths.frontier),
            partial(self._keep, "check results", paths.check_results),
            partial(self._keep, "redecoded", paths.redecoded),
        ]
        return {run.args[0]: run for run in wanted if DeltaTable.is_deltatable(run.args[1])}

    def _keep_landing(self, name: str, path: str) -> Kept:
        return self._keep(name, path, self._expire_landing, self._unread_hours(), _newest_landing(path))

    def _keep_state(self, name: str, path: str, table: str) -> Kept:
        # State's merges keep files at a size of their own; --at reads versions as long as their files are there.
        return self._keep(name, path, partial(self._expire_tombstones, table), small_bytes=SMALL_FILE_BYTES,
                          log_hours=self._settings.vacuum_hours)

    def _keep(
        self, name: str, path: str, expire: Callable[[str], int] = lambda _: 0, unread_hours: float = 0.0,
        log_from: int | None = None, *, small_bytes: int = SMALL_BYTES, log_hours: float = _LOG_HOURS,
    ) -> Kept:
        before = _sizes(path)
        deleted = expire(path)
        failpoint("maintain.deleted")
        if sum(size < small_bytes for size in before) >= _MANY:
            compact(self._spark, path, small_bytes)
            failpoint("maintain.compacted")
        vacuumed = self._vacuum_is_due(path)
        if vacuumed:
            vacuum(self._spark, path, max(self._settings.vacuum_hours, unread_hours))
        clean_log(path, keep_hours=max(log_hours, unread_hours), keep_from=log_from)
        kept = Kept(name, len(before), len(_sizes(path)), deleted, vacuumed)
        logger.info("%s: %d files became %d, %d rows deleted%s", name, kept.files_before, kept.files_after, deleted,
                    ", old files removed" if vacuumed else "")
        return kept

    def _expire_landing(self, path: str) -> int:
        if self._settings.landing_days is None:
            return 0
        landing = self._spark.read.format("delta").load(path).where(F.col(BATCH) <= self._reconciled)
        cutoff = self._now - timedelta(days=self._settings.landing_days)
        row = landing.where(F.col("landed_at") >= F.lit(cutoff)).agg(F.min(BATCH).alias(BATCH)).first()
        young = row[BATCH] if row and row[BATCH] is not None else self._reconciled + 1
        # The newest batch stays: from it the next ones are counted, and its lease epoch tells of orphans.
        last = min(young - 1, self._reconciled - 1, self._first_open(path) - 1)
        return delete(self._spark, path, f"{BATCH} <= {last}")

    def _first_open(self, path: str) -> int:
        """The batch in which the oldest chunk window began that reconcile has yet to close."""
        landing = self._spark.read.format("delta").load(path)
        newest = landing.agg(F.max(LEASE_EPOCH).alias(LEASE_EPOCH)).first()
        if newest is None or newest[LEASE_EPOCH] is None:
            return self._reconciled
        files = LandingFiles(path, self._paths.source)
        found = survey(files.files(1, files.newest_batch), 1, files.newest_batch).watermarks
        unread = [row for row in found if row.kind == HIGH and row.batch > self._reconciled]
        began = [ending.end.first_batch for ending in endings(unread) if ending.window]
        answered = {row.chunk for row in found if row.kind == HIGH}
        # Those of earlier lease epochs are answered by now, or never will be.
        going = [row for row in unanswered(found, answered) if row.lease_epoch == newest[LEASE_EPOCH]]
        began += [row.batch for row in going]
        if going:
            chunks = landing.where((F.col(KIND) == CHUNK) & F.col(CHUNK_ID).isin([row.chunk_id for row in going]))
            first = chunks.agg(F.min(BATCH).alias(BATCH)).first()
            began += [first[BATCH]] if first and first[BATCH] is not None else []
        return min([*began, self._reconciled])

    def _expire_events(self, path: str) -> int:
        if self._settings.events_days is None:
            return 0
        # Tables behind have yet to read theirs; what a ledger behind has to count is not there to be counted twice.
        upto = min(self._frontier.batch, self._reconciled, *self._frontier.behind.values())
        cutoff = self._now - timedelta(days=self._settings.events_days)
        events = self._spark.read.format("delta").load(path)
        row = events.where(old(cutoff, upto)).agg(F.max(BATCH).alias(BATCH)).first()
        if row is None or row[BATCH] is None:
            return 0
        # First of all: from here on nobody may count what these batches hold.
        record_batch(path, Application.consolidation(self._paths.source), row[BATCH])
        gone = superseded(events, cutoff, upto)
        return delete_these(self._spark, path, gone, POSITION, old(cutoff, upto))

    def _expire_tombstones(self, table: str, path: str) -> int:
        then = self._expiring
        if then.position is None or table in self._frontier.behind or table in then.behind:
            return 0
        return delete(self._spark, path, expired(then.position))

    def _vacuum_is_due(self, path: str) -> bool:
        for commit in DeltaTable(path).history(_COMMITS_LOOKED_AT):
            if commit.get("operation") == "VACUUM END":
                return datetime.fromtimestamp(commit["timestamp"] / 1000, UTC) <= self._now - _VACUUM_EVERY
        return True

    def _unread_hours(self) -> float:
        """How long ago the oldest batch landed that reconcile has not read; its stream wants the file it came in."""
        unread = self._spark.read.format("delta").load(self._paths.landing).where(F.col(BATCH) > self._reconciled)
        row = unread.agg(F.min("landed_at").alias("since")).first()
        if row is None or row["since"] is None:
            return 0.0
        since: datetime = row["since"]
        return (self._now - since.astimezone(UTC)) / timedelta(hours=1) + 1


def _newest_landing(path: str) -> int:
    """Return the version of capture's newest commit, which says where capture resumes; 0 if it is not found."""
    table, limit = DeltaTable(path), _COMMITS_LOOKED_AT
    while True:
        history = table.history(limit)
        for commit in history:
            if RESUME_METADATA in commit:
                return int(commit["version"])
        if len(history) < limit:
            return 0
        limit *= 10


def _sizes(path: str) -> list[int]:
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    sizes: list[int] = files["size_bytes"].to_pylist()
    return sizes
