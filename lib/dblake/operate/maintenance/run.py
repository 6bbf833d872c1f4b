"""Run maintenance over all tables of a source, safely beside every job that reads and writes them.

Place: ``jobs.maintain`` calls it; ``maintenance.compaction`` maintains one table. Guarantee: the slowest reader bounds
every deletion. Landing keeps what reconcile has not read and what an open window needs, events keep what state has not
folded, tombstones are kept until state as a whole has been past them long enough, and files are removed only after they
left the table for longer than any reader lags. When each may happen is configured by ``config.MaintainConfig``.
What is due is decided by the Delta logs and file statistics: a run with nothing to do starts no JVM.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from dblake.base.core.errors import CatalogUnavailable, DblakeError, TableUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.names import split_qualified
from dblake.base.core.progress import stage
from dblake.base.lake.cleanup import clean_log
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.query import instant, query_rows
from dblake.base.lake.tables import has_table, list_files, maps_columns, open_table
from dblake.config import MaintainConfig
from dblake.landing.columns import BATCH, COMMITTED_AT, LANDED_AT, RESUME_METADATA
from dblake.operate.maintenance.bookkeeping import old_frontier_sql, old_results_sql, old_windows_sql
from dblake.operate.maintenance.compaction import SMALL_FILE_BYTES, compact, delete, maintenance_session, vacuum
from dblake.operate.maintenance.event_compaction import compact_events
from dblake.operate.maintenance.landing_expiry import last_expired_batch
from dblake.operate.maintenance.tombstones import expired_tombstones_sql
from dblake.transform.spark.session import Session, as_session
from dblake.transform.state.files import SMALL_FILE_BYTES as STATE_SMALL_FILE_BYTES
from dblake.transform.state.runner import choose_runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMPACT_MIN_FILES = 8
"""A table with at least this many small files is compacted."""
_VACUUM_INTERVAL = timedelta(hours=24)
"""It lists the whole folder of every table."""
_HISTORY_COMMITS = 1000
_LOG_RETENTION_HOURS = 24.0
"""Minimum age of a log entry that is removed; readers of a table begin at its newest version."""

FirstNeeded = Callable[[], int | None]
BeforeVacuum = Callable[[str, float], object]
"""Called before old files of a state table, or of ``events``, are removed, with the hours of their retention."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result for one table: its number of files before and after, rows deleted, and whether it was vacuumed."""

    table: str
    files_before: int
    files_after: int
    rows_deleted: int
    vacuumed: bool

    @property
    def has_changed(self) -> bool:
        """True if rows were deleted, files were merged or old files were removed."""
        return self.vacuumed or self.rows_deleted > 0 or self.files_before != self.files_after


def maintain(
    spark: SparkSession | Session, paths: Paths, settings: MaintainConfig, *, parallel: int = 4,
    first_needed: FirstNeeded = lambda: None, before_vacuum: BeforeVacuum | None = None,
) -> list[MaintenanceResult]:
    """Maintain all existing tables of a source, ``parallel`` at a time; return one result per table.

    ``first_needed`` returns the oldest landing batch that something outside the lake needs, None without one.
    Records the time, which ``last_maintained`` returns. Raises at the end CatalogUnavailable, or TableUnavailable, of
    the first table whose old files stay because another catalog that has them did not answer.
    """
    run = Maintenance(spark, paths, settings, first_needed, before_vacuum)
    tasks = run.tasks()
    with stage("maintain", "table", len(tasks)) as progress, ThreadPoolExecutor(
        parallel, thread_name_prefix="maintain"
    ) as pool:
        futures = [pool.submit(task) for task in tasks.values()]
        for future in futures:
            future.add_done_callback(lambda _: progress.advance())
        results = [future.result() for future in futures]
    if has_table(paths.schemas):
        if run.is_vacuum_due and not run.unprepared:
            record_batch(paths.schemas, Application.vacuum(paths.source), int(time.time()))
        record_batch(paths.schemas, Application.maintenance(paths.source), int(time.time()))
    if run.unprepared:
        raise run.unprepared[0]
    return results


def last_maintained(paths: Paths) -> datetime | None:
    """Return when the newest complete run ended; None before the first."""
    return _last_run(paths, Application.maintenance(paths.source))


def _last_run(paths: Paths, application: str) -> datetime | None:
    seconds = newest_batch(paths.schemas, application)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


class Maintenance:
    """One run. Its bounds are read once, at the start: readers only advance from there."""

    def __init__(
        self, spark: SparkSession | Session, paths: Paths, settings: MaintainConfig,
        first_needed: FirstNeeded = lambda: None, before_vacuum: BeforeVacuum | None = None,
    ) -> None:
        self._session, self._lock = as_session(spark), threading.Lock()
        self._started: SparkSession | None = None
        self._now = datetime.now(UTC)
        self._paths, self._settings, self._first_needed = paths, settings, first_needed
        self._before_vacuum = before_vacuum
        self._reconciled = min(
            newest_batch(path, Application.reconcile(paths.source))
            for path in (paths.schemas, paths.events, paths.windows)
        )
        self._frontier = read_frontier(paths)
        expired_at = self._now - timedelta(days=settings.tombstone_days)
        self._expired_frontier = read_frontier(paths, until=expired_at)
        self._history_begins = min(expired_at, self._now - timedelta(hours=settings.vacuum_hours))
        vacuumed = _last_run(paths, Application.vacuum(paths.source))
        self.is_vacuum_due = vacuumed is None or vacuumed <= self._now - _VACUUM_INTERVAL
        """Whether this run removes old files."""
        self.unprepared: list[DblakeError] = []
        """Why old files of tables stay: what ``before_vacuum`` raised."""

    @property
    def spark(self) -> SparkSession:
        """The session, which starts with the first task that needs it."""
        with self._lock:
            if self._started is None:
                self._started = maintenance_session(self._session())
            return self._started

    def tasks(self) -> dict[str, Callable[[], MaintenanceResult]]:
        """Return, by name, a function for each existing table that maintains it."""
        paths, frontier = self._paths, self._frontier
        states = sorted({*frontier.versions, *frontier.behind})
        tasks = [
            partial(self._maintain_landing, "landing", paths.landing),
            partial(self._maintain, "events", paths.events, self._expire_events, compact_files=self._compact_events,
                    published="events"),
            *(partial(self._maintain_state, f"state {table}", paths.state(*split_qualified(table)), table)
              for table in states),
            partial(self._maintain, "schemas", paths.schemas),
            partial(self._maintain, "windows", paths.windows, self._expire(lambda: old_windows_sql(paths))),
            partial(self._maintain, "frontier", paths.frontier,
                    self._expire(lambda: old_frontier_sql(paths, self._history_begins))),
            partial(self._maintain, "check results", paths.check_results,
                    self._expire(lambda: old_results_sql(paths, self._history_begins))),
            partial(self._maintain, "redecoded", paths.redecoded),
        ]
        return {task.args[0]: task for task in tasks if has_table(task.args[1])}

    def _compact_events(self, path: str, small_bytes: int) -> int:
        return compact_events(path, small_bytes, choose_runner(self._session, 1))

    def _maintain_landing(self, name: str, path: str) -> MaintenanceResult:
        return self._maintain(name, path, self._expire_landing, self._unread_hours(), _newest_landing_version(path))

    def _maintain_state(self, name: str, path: str, table: str) -> MaintenanceResult:
        # State's merges keep files at a size of their own; --at reads versions as long as their files exist.
        return self._maintain(name, path, partial(self._expire_tombstones, table), small_bytes=STATE_SMALL_FILE_BYTES,
                              log_hours=self._settings.vacuum_hours, published=table)

    def _maintain(
        self, name: str, path: str, expire: Callable[[str], int] = lambda _: 0, unread_hours: float = 0.0,
        log_from: int | None = None, *, small_bytes: int = SMALL_FILE_BYTES, log_hours: float = _LOG_RETENTION_HOURS,
        compact_files: Callable[[str, int], int] | None = None, published: str | None = None,
    ) -> MaintenanceResult:
        """Expire rows, compact and vacuum one table, and clean its log.

        ``unread_hours`` extends the retention of removed files; ``log_from`` is the oldest version that must stay.
        ``compact_files`` merges the files below a size, in place of Spark. ``published`` names what other catalogs may
        have of the table.
        """
        sizes_before = _file_sizes(path)
        deleted = expire(path)
        failpoint("maintain.deleted")
        if sum(size < small_bytes for size in sizes_before) >= _COMPACT_MIN_FILES:
            if compact_files is None:
                compact(self.spark, path, small_bytes)
            else:
                compact_files(path, small_bytes)
            failpoint("maintain.compacted")
        hours = max(self._settings.vacuum_hours, math.ceil(unread_hours))
        has_vacuumed = self.is_vacuum_due and self._prepare_vacuum(published, hours)
        if has_vacuumed:
            vacuum(lambda: self.spark, path, hours)
        clean_log(path, keep_hours=max(log_hours, unread_hours), keep_from=log_from)
        result = MaintenanceResult(name, len(sizes_before), len(_file_sizes(path)), deleted, has_vacuumed)
        logger.info("%s: %d files before, %d after, %d rows deleted%s", name, result.files_before, result.files_after,
                    deleted, ", old files removed" if result.vacuumed else "")
        return result

    def _prepare_vacuum(self, published: str | None, hours: float) -> bool:
        """Return False if a catalog may still name files that would be removed: they stay until the next run."""
        if published is None or self._before_vacuum is None:
            return True
        try:
            self._before_vacuum(published, hours)
        except (CatalogUnavailable, TableUnavailable) as error:
            logger.error("%s: old files stay: %s", published, error)  # noqa: TRY400 - a traceback may hold values
            self.unprepared.append(error)
            return False
        return True

    def _expire(self, find_old: Callable[[], str | None]) -> Callable[[str], int]:
        """Return a function that deletes the rows of a table which a condition names, once a day."""

        def expire(path: str) -> int:
            condition = find_old() if self.is_vacuum_due else None
            return delete(self.spark, path, condition) if condition and _has_rows(path, condition) else 0

        return expire

    def _expire_landing(self, path: str) -> int:
        """Delete old batches that reconcile has read and no open window needs; return the number of rows."""
        if self._settings.landing_days is None:
            return 0
        cutoff = self._now - timedelta(days=self._settings.landing_days)
        # The newest batch is kept: the next batch number continues it, and its lease epoch identifies orphans.
        if not _has_rows(path, f"{BATCH} < {self._reconciled} AND {LANDED_AT} < {instant(cutoff)}"):
            return 0
        # Asked before landing is read: an import that ends in between has left the windows that need these batches.
        needed = self._first_needed()
        last = last_expired_batch(self._paths, self._reconciled, cutoff, needed)
        return delete(self.spark, path, f"{BATCH} <= {last}") if last else 0

    def _expire_events(self, path: str) -> int:
        """Delete old events that later ones supersede, once all readers have them; return their number."""
        if self._settings.events_days is None:
            return 0
        # State tables that are behind still read their events, and a ledger that is behind still counts them.
        upto = min(self._frontier.batch, self._reconciled, *self._frontier.behind.values())
        cutoff = self._now - timedelta(days=self._settings.events_days)
        if not _has_rows(path, f"{BATCH} <= {upto} AND {COMMITTED_AT} < {instant(cutoff)}"):
            return 0
        from dblake.operate.maintenance.expiry import expire_events

        return expire_events(self.spark, self._paths, upto, cutoff)

    def _expire_tombstones(self, table: str, path: str) -> int:
        """Delete expired tombstones of a table that is not, and was not, behind; return their number."""
        frontier = self._expired_frontier
        if frontier.position is None or table in self._frontier.behind or table in frontier.behind:
            return 0
        if not _has_rows(path, f"_deleted AND _incarnation <= {frontier.position.incarnation}"):
            return 0
        return delete(self.spark, path, expired_tombstones_sql(frontier.position))

    def _unread_hours(self) -> float:
        """Return the age of the oldest batch that reconcile has not read, plus one hour; 0 if there is none.

        A reconcile that runs reads the file in which a batch landed, even after compaction replaced it.
        """
        if newest_batch(self._paths.landing, Application.capture(self._paths.source)) <= self._reconciled:
            return 0.0
        unread = f"SELECT min(landed_at) AS since FROM t WHERE {BATCH} > {self._reconciled}"
        (row,) = query_rows(self._paths.landing, unread)
        since: datetime | None = row["since"]
        return 0.0 if since is None else (self._now - since.astimezone(UTC)) / timedelta(hours=1) + 1


def _has_rows(path: str, condition: str) -> bool:
    """Return False if no row matches an SQL condition; delta-rs cannot read a table with odd column names."""
    if maps_columns(open_table(path)):
        return True
    return bool(query_rows(path, f"SELECT 1 AS one FROM t WHERE {condition} LIMIT 1"))


def _newest_landing_version(path: str) -> int:
    """Return the version of capture's newest commit, from which capture resumes; 0 if it is not found."""
    table, limit = open_table(path), _HISTORY_COMMITS
    while True:
        history = table.history(limit)
        for commit in history:
            if RESUME_METADATA in commit:
                return int(commit["version"])
        if len(history) < limit:
            return 0
        limit *= 10


def _file_sizes(path: str) -> list[int]:
    files = list_files(open_table(path))
    sizes: list[int] = files["size_bytes"].to_pylist()
    return sizes
