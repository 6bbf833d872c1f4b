"""Composes ``check``: which suites are evaluated on which rows, from where on, and what is kept of it.

Tables are looked at as of versions taken one after the other, against the path's direction: state first, landing last.
So whatever the other jobs do meanwhile, each table is held against one that is at least as far.

Promise: a run is bounded by what is new. Of landing, ledger and events the batches are looked at that came after the
last run which found nothing wrong in them; of state the tables that have changed since. Users' suites are evaluated on
all rows, each time. Results are kept before anybody is told.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblake.core.errors import ChecksFailed, ConfigError, DblakeError, UsageError
from dblake.core.names import abbreviated, split_qualified
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch
from dblake.lake.schemas import SchemaVersion, read_schemas
from dblake.quality import events as of_events
from dblake.quality import landing as of_landing
from dblake.quality import state as of_state
from dblake.quality import windows as of_windows
from dblake.quality.results import RESULTS, Outcome, failed, passed
from dblake.quality.suite import Suite
from dblake.quality.user_suite import UserSuite, unknown_table
from dblake.quality.validation import Validation
from dblake.sql.views import Views

logger = logging.getLogger(__name__)

_SHOWN = 5
_BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found; ``pages`` is the first page of its pages, None if there are none."""

    outcomes: Sequence[Outcome]
    pages: Path | None

    def require_success(self) -> None:
        """Raises ChecksFailed if rows are wrong, and an error for expectations that could not be evaluated."""
        wrong = failed(self.outcomes)
        if wrong:
            said = [str(outcome) for outcome in wrong[:_SHOWN]]
            if len(wrong) > _SHOWN:
                said.append(f"and {len(wrong) - _SHOWN} more")
            raise ChecksFailed(
                f"{len(wrong)} of {len(self.outcomes)} expectations failed: {'; '.join(said)}",
                next_step='docs/runbook.md, "65 a check failed", tells what each may mean',
            )
        faults = [outcome for outcome in self.outcomes if outcome.fault]
        if faults and all(outcome.suite.startswith("own/") for outcome in faults):
            raise ConfigError(
                "; ".join(f"{outcome.suite}: {outcome}" for outcome in faults[:_SHOWN]), next_step="mend the suite"
            )
        if faults:
            raise DblakeError(f"{'; '.join(map(str, faults[:_SHOWN]))}; this is a bug", next_step="report this line")


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A table as of one version, and the landing batch it holds up to."""

    rows: DataFrame
    version: int
    batch: int


def run_check(
    spark: SparkSession, paths: Paths, own: Sequence[UserSuite], *, everything: bool = False,
    tables: Sequence[str] = (), told: Callable[[Suite], None] = lambda _: None,
) -> Report:
    """Evaluates all suites there are, or of some ``tables`` alone, and keeps what came of it.

    ``everything``: whatever earlier runs have found. ``told`` is called with each suite before it is evaluated.
    """
    run = _Run(spark, paths, own, {} if everything else _passed(spark, paths), tables)
    run_id, started = uuid.uuid4().hex, datetime.now(UTC)
    validation = Validation(run_id, started)
    outcomes: list[Outcome] = []
    for suite in run.suites():
        told(suite)
        rows = suite.rows.persist()
        try:
            # Of a table that cannot be read the error is Spark's own, not an expectation's.
            rows.count()
            outcomes += validation.check(suite)
        finally:
            rows.unpersist()
    if not outcomes:
        return Report([], None)
    kept = spark.createDataFrame([outcome.row(run_id, started) for outcome in outcomes], RESULTS)
    with commit_lock(paths.check_results):
        kept.coalesce(1).write.format("delta").mode("append").save(paths.check_results)
    if "://" in paths.warehouse:
        logger.warning("no pages are made: they need a warehouse that is a folder; results are in %s",
                       paths.check_results)
        return Report(outcomes, None)
    return Report(outcomes, validation.write_pages(Path(paths.check_pages)))


class _Run:
    """One run: the tables as they were when it began, and what of them is to be looked at."""

    def __init__(
        self, spark: SparkSession, paths: Paths, own: Sequence[UserSuite], passed: dict[tuple[str, str], int],
        tables: Sequence[str],
    ) -> None:
        self._spark, self._paths, self._passed = spark, paths, passed
        known = sorted(read_schemas(paths)) if DeltaTable.is_deltatable(paths.schemas) else []
        unknown = [table for table in tables if table not in known]
        if unknown:
            raise UsageError(
                f"there is no table {abbreviated(unknown)} here; there are: {abbreviated(known) or 'none yet'}",
                next_step="name tables as schema.table",
            )
        self._whole = not tables
        wanted = tables or known
        self._states = {table: state for table in wanted if (state := self._state(table))}
        self._ledger = self._pinned(paths.windows, Application.reconcile(paths.source))
        self._events = self._pinned(paths.events, Application.reconcile(paths.source))
        self._schemas = read_schemas(paths) if self._events else {}
        self._landing = self._pinned(paths.landing, Application.capture(paths.source))
        self._own = [suite for suite in own if not tables or suite.table in tables]
        for suite in self._own:
            if suite.table not in known:
                raise unknown_table(suite, known)

    def suites(self) -> Iterator[Suite]:
        """Those that have anything to look at."""
        if self._whole and self._landing:
            yield from self._of_landing(self._landing)
        if self._whole and self._events:
            yield from self._of_events(self._events)
        if self._whole and self._ledger and self._events and self._landing:
            yield from self._of_windows(self._ledger, self._events, self._landing)
        newest = self._newest()
        for table, state in self._states.items():
            if self._passed.get(("state", table)) != state.version:
                yield self._of_state(table, state, newest)
        if self._own:
            views = Views(self._spark, self._paths)
            for own in self._own:
                rows = views.plain(own.table)
                own.require_columns(rows.columns)
                yield Suite(own.name, own.table, rows, own.expectations)

    def _of_landing(self, landing: _Pinned) -> Iterator[Suite]:
        since = self._since("landing", "landing", landing.batch)
        if since < landing.batch:
            # With the batch before, so that a hole right after it is seen.
            rows = of_landing.batches(landing.rows.where(_after(since - 1)), landing.batch)
            yield Suite("landing", "landing", rows, of_landing.EXPECTED, since, landing.batch)

    def _of_events(self, events: _Pinned) -> Iterator[Suite]:
        since = self._since("events", "events", events.batch)
        if since < events.batch:
            facts = of_events.schema_facts(self._spark, _versions(self._schemas, events.batch))
            rows = of_events.rows(events.rows.where(_after(since)), facts)
            yield Suite("events", "events", rows, of_events.ROWS_EXPECTED, since, events.batch)
        since = self._since("order", "events", events.batch)
        if since < events.batch:
            before = events.rows.where(F.col(_BATCH) <= since).agg(F.max(_BATCH)).first() if since else None
            first = before[0] if before and before[0] is not None else since
            rows = of_events.order(events.rows.where(F.col(_BATCH) >= first))
            yield Suite("order", "events", rows, of_events.ORDER_EXPECTED, since, events.batch)

    def _of_windows(self, ledger: _Pinned, events: _Pinned, landing: _Pinned) -> Iterator[Suite]:
        since = self._since("watermarks", "windows", ledger.batch)
        if since < ledger.batch:
            rows = of_windows.watermarks(landing.rows, ledger.rows, since, ledger.batch)
            yield Suite("watermarks", "windows", rows, of_windows.WATERMARKS_EXPECTED, since, ledger.batch)
        since = self._since("windows", "windows", ledger.batch)
        if since < ledger.batch:
            rows = of_windows.ledger_lines(
                ledger.rows, events.rows, since, ledger.batch,
                consolidated=newest_batch(self._paths.events, Application.consolidation(self._paths.source)),
            )
            yield Suite("windows", "windows", rows, of_windows.LEDGER_EXPECTED, since, ledger.batch)

    def _of_state(self, table: str, state: _Pinned, newest: Position | None) -> Suite:
        versions = _versions(self._schemas, state.batch)[table]
        rows = of_state.rows(state.rows, versions, newest)
        return Suite("state", table, rows, of_state.expected(versions, state.rows.columns), None, state.version)

    def _newest(self) -> Position | None:
        """The newest position in events: it is in their newest batch."""
        if not self._events:
            return None
        rows = self._events.rows
        batch = rows.agg(F.max(_BATCH)).first()
        if batch is None or batch[0] is None:
            return None
        place = F.max(F.struct("incarnation", "lsn", "seq"))
        row = rows.where(F.col(_BATCH) == batch[0]).agg(place).first()
        return Position(*row[0]) if row else None

    def _since(self, suite: str, table: str, newest: int) -> int:
        """After which batch to begin; from the start if the table was made anew since."""
        before = self._passed.get((suite, table), 0)
        return before if before <= newest else 0

    def _state(self, table: str) -> _Pinned | None:
        return self._pinned(self._paths.state(*split_qualified(table)), Application.state(self._paths.source))

    def _pinned(self, path: str, application: str) -> _Pinned | None:
        """A table as it is now; None if there is none, or nothing was put into it yet."""
        if not DeltaTable.is_deltatable(path):
            return None
        table = DeltaTable(path)
        batch = table.transaction_version(application)
        if batch is None:
            return None
        rows = self._spark.read.format("delta").option("versionAsOf", table.version()).load(path)
        return _Pinned(rows, table.version(), batch)


def _after(batch: int) -> Column:
    """Rows of later batches; a row without one is always new."""
    return (F.col(_BATCH) > batch) | F.col(_BATCH).isNull()


def _versions(schemas: dict[str, list[SchemaVersion]], batch: int) -> dict[str, list[TableSchema]]:
    """All versions of each table's schema up to a batch, oldest first."""
    upto = {table: [v.schema for v in versions if v.batch <= batch] for table, versions in schemas.items()}
    return {table: versions for table, versions in upto.items() if versions}


def _passed(spark: SparkSession, paths: Paths) -> dict[tuple[str, str], int]:
    if not DeltaTable.is_deltatable(paths.check_results):
        return {}
    return passed(spark.read.format("delta").load(paths.check_results))
