"""Run maintenance over all tables of a source, safely beside every job that reads and writes them.

Place: ``jobs.maintain`` calls it; ``maintenance.compaction`` maintains one table. Guarantee: the slowest reader bounds
every deletion. Landing keeps what reconcile has not read and what an open window needs, events keep what state has not
folded, tombstones are kept until state as a whole has been past them long enough, and files are removed only after they
left the table for longer than any reader lags. When each may happen is configured by ``config.MaintainConfig``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
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
from dblake.lake.tables import has_table, open_table
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, HIGH, KIND, LEASE_EPOCH, RESUME_METADATA
from dblake.maintenance.compaction import (
    SMALL_FILE_BYTES,
    compact,
    delete,
    delete_matching,
    maintenance_session,
    vacuum,
)
from dblake.maintenance.retention import old_events_sql, superseded_positions
from dblake.maintenance.tombstones import expired_tombstones_sql
from dblake.reconcile.batch_summary import survey
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.windows import lows_without_high, parse_endings
from dblake.state.files import SMALL_FILE_BYTES as STATE_SMALL_FILE_BYTES

_COMPACT_MIN_FILES = 8
"""A table with at least this many small files is compacted."""
_VACUUM_INTERVAL = timedelta(hours=24)
"""VACUUM lists the table's whole folder."""
_HISTORY_MAX_COMMITS = 1000
_LOG_RETENTION_HOURS = 24.0
"""Minimum age of a log entry that is removed; readers of a table begin at its newest version."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result for one table: its number of files before and after, rows deleted, and whether it was vacuumed."""

    table: str
    files_before: int
    files_after: int
    rows_deleted: int
    vacuumed: bool


def maintain(
    spark: SparkSession, paths: Paths, settings: MaintainConfig, *, parallel: int = 4
) -> list[MaintenanceResult]:
    """Maintain all existing tables of a source, ``parallel`` at a time; return one result per table."""
    maintenance = Maintenance(spark, paths, settings)
    with ThreadPoolExecutor(parallel, thread_name_prefix="maintain") as pool:
        futures = [pool.submit(task) for task in maintenance.tasks().values()]
        return [future.result() for future in futures]


class Maintenance:
    """One run. Its bounds are read once, at the start: readers only advance from there."""

    def __init__(self, spark: SparkSession, paths: Paths, settings: MaintainConfig) -> None:
        self._spark, self._now = maintenance_session(spark), datetime.now(UTC)
        self._paths, self._settings = paths, settings
        self._reconciled = min(
            newest_batch(path, Application.reconcile(paths.source))
            for path in (paths.schemas, paths.events, paths.windows)
        )
        self._frontier = read_frontier(paths)
        expired_at = self._now - timedelta(days=settings.tombstone_days)
        self._expired_frontier = read_frontier(paths, until=expired_at)

    def tasks(self) -> dict[str, Callable[[], MaintenanceResult]]:
        """Return, by name, a function for each existing table that maintains it."""
        paths, frontier = self._paths, self._frontier
        states = sorted({*frontier.versions, *frontier.behind})
        tasks = [
            partial(self._maintain_landing, "landing", paths.landing),
            partial(self._maintain, "events", paths.events, self._expire_events),
            *(partial(self._maintain_state, f"state {table}", paths.state(*split_qualified(table)), table)
              for table in states),
            partial(self._maintain, "schemas", paths.schemas),
            partial(self._maintain, "windows", paths.windows),
            partial(self._maintain, "frontier", paths.frontier),
            partial(self._maintain, "check results", paths.check_results),
            partial(self._maintain, "redecoded", paths.redecoded),
        ]
        return {task.args[0]: task for task in tasks if has_table(task.args[1])}

    def _maintain_landing(self, name: str, path: str) -> MaintenanceResult:
        return self._maintain(name, path, self._expire_landing, self._unread_hours(), _newest_landing_version(path))

    def _maintain_state(self, name: str, path: str, table: str) -> MaintenanceResult:
        # State's merges keep files at a size of their own; --at reads versions as long as their files exist.
        return self._maintain(name, path, partial(self._expire_tombstones, table), small_bytes=STATE_SMALL_FILE_BYTES,
                              log_hours=self._settings.vacuum_hours)

    def _maintain(
        self, name: str, path: str, expire: Callable[[str], int] = lambda _: 0, unread_hours: float = 0.0,
        log_from: int | None = None, *, small_bytes: int = SMALL_FILE_BYTES, log_hours: float = _LOG_RETENTION_HOURS,
    ) -> MaintenanceResult:
        """Expire rows, compact and vacuum one table, and clean its log.

        ``unread_hours`` extends the retention of removed files; ``log_from`` is the oldest version that must stay.
        """
        sizes_before = _file_sizes(path)
        deleted = expire(path)
        failpoint("maintain.deleted")
        if sum(size < small_bytes for size in sizes_before) >= _COMPACT_MIN_FILES:
            compact(self._spark, path, small_bytes)
            failpoint("maintain.compacted")
        vacuumed = self._is_vacuum_due(path)
        if vacuumed:
            vacuum(self._spark, path, max(self._settings.vacuum_hours, unread_hours))
        clean_log(path, keep_hours=max(log_hours, unread_hours), keep_from=log_from)
        result = MaintenanceResult(name, len(sizes_before), len(_file_sizes(path)), deleted, vacuumed)
        logger.info("%s: %d files before, %d after, %d rows deleted%s", name, result.files_before, result.files_after,
                    deleted, ", old files removed" if vacuumed else "")
        return result

    def _expire_landing(self, path: str) -> int:
        """Delete old batches that reconcile has read and no open window needs; return the number of rows."""
        if self._settings.landing_days is None:
            return 0
        landing = self._spark.read.format("delta").load(path).where(F.col(BATCH) <= self._reconciled)
        cutoff = self._now - timedelta(days=self._settings.landing_days)
        row = landing.where(F.col("landed_at") >= F.lit(cutoff)).agg(F.min(BATCH).alias(BATCH)).first()
        first_retained = row[BATCH] if row and row[BATCH] is not None else self._reconciled + 1
        # The newest batch is kept: the next batch number continues it, and its lease epoch identifies orphans.
        last = min(first_retained - 1, self._reconciled - 1, self._first_open_batch(path) - 1)
        return delete(self._spark, path, f"{BATCH} <= {last}")

    def _first_open_batch(self, path: str) -> int:
        """Return the batch in which the oldest window that reconcile has not closed began.

        Without such a window it is the newest batch that reconcile has read.
        """
        landing = self._spark.read.format("delta").load(path)
        newest = landing.agg(F.max(LEASE_EPOCH).alias(LEASE_EPOCH)).first()
        if newest is None or newest[LEASE_EPOCH] is None:
            return self._reconciled
        files = LandingFiles(path, self._paths.source)
        watermarks = survey(files.files(1, files.newest_batch), 1, files.newest_batch).watermarks
        unread = [row for row in watermarks if row.kind == HIGH and row.batch > self._reconciled]
        first_batches = [ending.end.first_batch for ending in parse_endings(unread) if ending.window]
        ended = {row.chunk for row in watermarks if row.kind == HIGH}
        # Windows of earlier lease epochs have ended, or are orphans that never will.
        open_lows = [row for row in lows_without_high(watermarks, ended) if row.lease_epoch == newest[LEASE_EPOCH]]
        first_batches += [row.batch for row in open_lows]
        if open_lows:
            chunks = landing.where((F.col(KIND) == CHUNK) & F.col(CHUNK_ID).isin([row.chunk_id for row in open_lows]))
            first = chunks.agg(F.min(BATCH).alias(BATCH)).first()
            first_batches += [first[BATCH]] if first and first[BATCH] is not None else []
        return min([*first_batches, self._reconciled])

    def _expire_events(self, path: str) -> int:
        """Delete old events that later ones supersede, once all readers have them; return their number."""
        if self._settings.events_days is None:
            return 0
        # State tables that are behind still read their events, and a ledger that is behind still counts them.
        upto = min(self._frontier.batch, self._reconciled, *self._frontier.behind.values())
        cutoff = self._now - timedelta(days=self._settings.events_days)
        events = self._spark.read.format("delta").load(path)
        row = events.where(old_events_sql(cutoff, upto)).agg(F.max(BATCH).alias(BATCH)).first()
        if row is None or row[BATCH] is None:
            return 0
        # Recorded before the delete: from now on the events of these batches are incomplete and not countable.
        record_batch(path, Application.consolidation(self._paths.source), row[BATCH])
        superseded = superseded_positions(events, cutoff, upto)
        return delete_matching(self._spark, path, superseded, POSITION, old_events_sql(cutoff, upto))

    def _expire_tombstones(self, table: str, path: str) -> int:
        """Delete expired tombstones of a table that is not, and was not, behind; return their number."""
        frontier = self._expired_frontier
        if frontier.position is None or table in self._frontier.behind or table in frontier.behind:
            return 0
        return delete(self._spark, path, expired_tombstones_sql(frontier.position))

    def _is_vacuum_due(self, path: str) -> bool:
        for commit in open_table(path).history(_HISTORY_MAX_COMMITS):
            if commit.get("operation") == "VACUUM END":
                return datetime.fromtimestamp(commit["timestamp"] / 1000, UTC) <= self._now - _VACUUM_INTERVAL
        return True

    def _unread_hours(self) -> float:
        """Return the age of the oldest batch that reconcile has not read, plus one hour; 0 if there is none.

        Reconcile's stream reads the file in which a batch landed, even after compaction replaced it.
        """
        unread = self._spark.read.format("delta").load(self._paths.landing).where(F.col(BATCH) > self._reconciled)
        row = unread.agg(F.min("landed_at").alias("since")).first()
        if row is None or row["since"] is None:
            return 0.0
        since: datetime = row["since"]
        return (self._now - since.astimezone(UTC)) / timedelta(hours=1) + 1


def _newest_landing_version(path: str) -> int:
    """Return the version of capture's newest commit, from which capture resumes; 0 if it is not found."""
    table, limit = open_table(path), _HISTORY_MAX_COMMITS
    while True:
        history = table.history(limit)
        for commit in history:
            if RESUME_METADATA in commit:
                return int(commit["version"])
        if len(history) < limit:
            return 0
        limit *= 10


def _file_sizes(path: str) -> list[int]:
    files = pa.table(open_table(path).get_add_actions(flatten=True))
    sizes: list[int] = files["size_bytes"].to_pylist()
    return sizes
