"""Select what a run of ``check`` covers: the tables' versions, the new batches, and a suite for each.

Place: between the tables and ``quality.run``. Tables are pinned one after the other against the direction of the path:
state first, landing last. So each table is compared with tables that hold at least its batches, also if other jobs
write during the run.

Guarantee: the new data bounds a run. Of landing, ledger and events it covers the batches after the suite's newest
passed run. Of state it covers the tables that changed since. User suites cover all rows, in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from dblake.base.core.errors import UsageError
from dblake.base.core.names import abbreviated, split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.schemas import SchemaVersion, read_schemas
from dblake.base.lake.tables import has_table
from dblake.operate.quality.events import (
    EVENT_EXPECTATIONS,
    ORDER_EXPECTATIONS,
    build_schema_facts,
    evaluate_events,
    summarize_order,
)
from dblake.operate.quality.landing import EXPECTATIONS as LANDING_EXPECTATIONS
from dblake.operate.quality.landing import summarize_batches
from dblake.operate.quality.pinned import PinnedTable, pin_table
from dblake.operate.quality.state import build_expectations, evaluate_state
from dblake.operate.quality.suite import Suite, expect_one_of
from dblake.operate.quality.user_suite import UserSuite, unknown_table
from dblake.operate.quality.windows import (
    LEDGER_EXPECTATIONS,
    WATERMARK_EXPECTATIONS,
    evaluate_ledger,
    evaluate_watermarks,
)
from dblake.operate.verification.findings import find_wrong
from dblake.operate.verification.ledger import newest_by_table
from dblake.serve.sql.views import Views
from dblake.transform.spark.session import Session, takes_all_work

_BATCH = "batch"


class SuiteSelection:
    """The tables as of the start of a run, and the suites for their new rows.

    ``passed`` has, by suite and table, the ``upto`` of the newest passed run. With ``tables`` only the state and user
    suites of these tables are selected. Raises UsageError for a table that is not captured, and ConfigError for a user
    suite of one.
    """

    def __init__(
        self, session: Session, paths: Paths, user_suites: Sequence[UserSuite],
        passed: Mapping[tuple[str, str], int], tables: Sequence[str],
    ) -> None:
        self._spark, self._paths, self._passed = session(), paths, passed
        self._in_spark = takes_all_work(session)
        captured = sorted(read_schemas(paths)) if has_table(paths.schemas) else []
        unknown = [table for table in tables if table not in captured]
        if unknown:
            raise UsageError(
                f"there is no table {abbreviated(unknown)}; tables: {abbreviated(captured) or 'none yet'}",
                next_step="name tables as schema.table",
            )
        self._covers_all_tables = not tables
        self._states = {table: state for table in tables or captured if (state := self._pin_state(table))}
        self._ledger = self._pin(paths.windows, Application.reconcile(paths.source))
        self._events = self._pin(paths.events, Application.reconcile(paths.source))
        self._schemas = read_schemas(paths) if self._events else {}
        self._landing = self._pin(paths.landing, Application.capture(paths.source))
        self._user_suites = [suite for suite in user_suites if not tables or suite.table in tables]
        for suite in self._user_suites:
            if suite.table not in captured:
                raise unknown_table(suite, captured)

    def suites(self) -> Iterator[Suite]:
        """Yield the suites that have rows to cover. Raises ConfigError for a user suite with an unknown column."""
        if self._covers_all_tables:
            if self._landing:
                yield from self._landing_suites(self._landing)
            if self._events:
                yield from self._event_suites(self._events)
            if self._ledger and self._events and self._landing:
                yield from self._window_suites(self._ledger, self._events, self._landing)
            yield from self._verification_suites()
        newest = self._newest_position()
        for table, state in self._states.items():
            if self._passed.get(("state", table)) != state.version:
                yield self._state_suite(table, state, newest)
        if self._user_suites:
            views = Views(self._spark, self._paths)
            for suite in self._user_suites:
                rows = views.read_plain(suite.table)
                suite.require_columns(rows.columns)
                yield Suite(suite.name, suite.table, rows, suite.expectations, has_values=True)

    def _verification_suites(self) -> Iterator[Suite]:
        """Yield the suite over each table's newest verification, if there is one."""
        newest = [(table, find_wrong(rounds).count) for table, rounds in sorted(newest_by_table(self._paths).items())]
        if newest:
            rows = self._spark.createDataFrame(newest, "table string, differences bigint")
            description = "state equals the source in each table's newest verification"
            yield Suite("verification", "verifications", rows, [expect_one_of("differences", [0], description)])

    def _landing_suites(self, landing: PinnedTable) -> Iterator[Suite]:
        since = self._since("landing", "landing", landing.batch)
        if since < landing.batch:
            # One batch more, so that a batch missing right after it is detected.
            rows = summarize_batches(landing.rows.where(_is_after(since - 1)), landing.batch)
            yield Suite("landing", "landing", rows, LANDING_EXPECTATIONS, since, landing.batch)

    def _event_suites(self, events: PinnedTable) -> Iterator[Suite]:
        since = self._since("events", "events", events.batch)
        if since < events.batch:
            facts = build_schema_facts(self._spark, _versions_upto(self._schemas, events.batch))
            rows = evaluate_events(events.rows.where(_is_after(since)), facts)
            yield Suite("events", "events", rows, EVENT_EXPECTATIONS, since, events.batch)
        since = self._since("order", "events", events.batch)
        if since < events.batch:
            row = events.rows.where(F.col(_BATCH) <= since).agg(F.max(_BATCH)).first() if since else None
            first = row[0] if row and row[0] is not None else since
            rows = summarize_order(events.rows.where(F.col(_BATCH) >= first))
            yield Suite("order", "events", rows, ORDER_EXPECTATIONS, since, events.batch)

    def _window_suites(self, ledger: PinnedTable, events: PinnedTable, landing: PinnedTable) -> Iterator[Suite]:
        since = self._since("watermarks", "windows", ledger.batch)
        if since < ledger.batch:
            rows = evaluate_watermarks(landing.rows, ledger.rows, since, ledger.batch)
            yield Suite("watermarks", "windows", rows, WATERMARK_EXPECTATIONS, since, ledger.batch)
        since = self._since("windows", "windows", ledger.batch)
        if since < ledger.batch:
            rows = evaluate_ledger(
                ledger.rows, events.rows, since, ledger.batch,
                consolidated=newest_batch(self._paths.events, Application.consolidation(self._paths.source)),
            )
            yield Suite("windows", "windows", rows, LEDGER_EXPECTATIONS, since, ledger.batch)

    def _state_suite(self, table: str, state: PinnedTable, newest: Position | None) -> Suite:
        versions = _versions_upto(self._schemas, state.batch)[table]
        rows = evaluate_state(state.rows, versions, newest)
        return Suite("state", table, rows, build_expectations(versions, state.rows.columns), None, state.version)

    def _newest_position(self) -> Position | None:
        """Return the newest position of events, which is in their newest batch; None without events."""
        if not self._events:
            return None
        rows = self._events.rows
        batch = rows.agg(F.max(_BATCH)).first()
        if batch is None or batch[0] is None:
            return None
        position = F.max(F.struct(*Position.COLUMNS))
        row = rows.where(F.col(_BATCH) == batch[0]).agg(position).first()
        return Position(*row[0]) if row else None

    def _since(self, suite: str, table: str, newest: int) -> int:
        """Return the batch after which a suite starts; 0 if the table was recreated since its newest passed run."""
        passed = self._passed.get((suite, table), 0)
        return passed if passed <= newest else 0

    def _pin_state(self, table: str) -> PinnedTable | None:
        return self._pin(self._paths.state(*split_qualified(table)), Application.state(self._paths.source))

    def _pin(self, path: str, application: str) -> PinnedTable | None:
        return pin_table(self._spark, path, application, in_spark=self._in_spark)


def _is_after(batch: int) -> Column:
    """Match rows of later batches; a row without a batch always matches."""
    return (F.col(_BATCH) > batch) | F.col(_BATCH).isNull()


def _versions_upto(schemas: dict[str, list[SchemaVersion]], batch: int) -> dict[str, list[TableSchema]]:
    """Return all versions of each table's schema up to a batch, oldest first."""
    upto = {table: [v.schema for v in versions if v.batch <= batch] for table, versions in schemas.items()}
    return {table: versions for table, versions in upto.items() if versions}
