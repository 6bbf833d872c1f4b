"""Events → state: find new events, fold them in steps, and record after each step how far state is.

Each table records in its own log how far it is, so a run after one that died continues there and does nothing twice.
After each step one row of ``frontier`` names a version of every state table. All these versions hold one position,
between two landing batches, so many tables can be read as of one point. A table that cannot take its events stays
behind, is named in the results and in ``frontier.behind``, and is tried again by every later run; the others continue.

Tasks bring each table up to date (``merge.merge_slice``), in threads or on Spark's executors, several tables at a time
(``waves``). A table with too many events for one task is folded by ``key_ranges``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dblake.base.core.errors import IncompatibleSchemaChange, StateError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.intervals import REPORT_SECONDS, Interval
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.progress import Stage, stage
from dblake.base.lake.frontier import Frontier, append_frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, TableVersion, newest_batch
from dblake.base.lake.schemas import SCHEMA_LOST, SchemaVersion, read_schemas
from dblake.base.lake.tables import has_table, open_table
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.redecode.changed_tables import read_changed_tables
from dblake.transform.spark.session import Session, as_session
from dblake.transform.state.merge import NO_EVENTS, Slice, SliceResult
from dblake.transform.state.rebuild import closed_windows, dumped_in, rebuild
from dblake.transform.state.restate import Restated, restate, settle
from dblake.transform.state.runner import TaskRunner, choose_runner
from dblake.transform.state.shape import first_compatible_version, shape_of
from dblake.transform.state.steps import Step, plan_spans
from dblake.transform.state.table import has_odd_names, prepare_odd_names, progress
from dblake.transform.state.waves import merge_large, merge_wave

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICE_BYTES = 256 << 20
"""A table whose events in a step have more bytes of images than this is folded by key ranges."""
WAVE_BYTES = 512 << 20
"""The events of several tables are read at once up to this."""
TASK_BYTES = 128 << 20
"""Likewise for each core of the executors, which read the events themselves."""

logger = logging.getLogger(__name__)
_report = Interval(REPORT_SECONDS)


@dataclass(frozen=True, slots=True)
class TableResult:
    """What a run did to one table: events folded in, the batch reached and the table's version, or its error."""

    table: str
    batch: int
    events: int
    error: StateError | None = None
    version: int = 0


def run_state(
    spark: SparkSession | Session, paths: Paths, *, parallel: int = 4, batches_per_step: int = 1000,
    until_batch: int | None = None, stop: threading.Event | None = None,
) -> list[TableResult]:
    """Fold all new events (up to ``until_batch``) into state; return one result for each table touched.

    ``spark`` may be a function that returns the session: on one machine it is called only for tables that Delta-rs
    cannot create. Ends after the current step once ``stop`` is set.
    """
    if not has_table(paths.events):
        return []
    results: dict[str, TableResult] = {}
    for done in _advance(as_session(spark), paths, parallel, batches_per_step, until_batch):
        for result in done:
            before = results.get(result.table)
            events = result.events + (before.events if before else 0)
            results[result.table] = replace(result, events=events)
        if stop and stop.is_set():
            break
    return [results[table] for table in sorted(results)]


def require_success(results: Sequence[TableResult]) -> None:
    """Raise the error of a table that stayed behind; of several tables one StateError that names all."""
    errors = [r.error for r in results if r.error]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise StateError(f"{len(errors)} of {len(results)} tables are behind: {'; '.join(e.what for e in errors)}",
                         next_step=errors[0].next_step)


class FoldedVersions:
    """The versions of the tables that a fold reads, by which a caller sees if there may be something to fold.

    Reconcile commits a batch's events before its windows, which show that a dump has ended: both count.
    """

    def __init__(self, paths: Paths) -> None:
        self._tables = TableVersion(paths.events), TableVersion(paths.windows)

    def read(self) -> tuple[int | None, ...]:
        """Return the versions of events and windows, None for a table that is not there."""
        return tuple(table.read() for table in self._tables)


def run_continuously(
    stop: threading.Event, paths: Paths, fold: Callable[[], list[TableResult]], interval: float
) -> None:
    """Fold whenever events or windows have changed, until ``stop`` is set.

    A table that cannot take its events is logged, and tried again with the next ones.
    """
    seen = None
    versions = FoldedVersions(paths)
    while not stop.is_set():
        now = versions.read()
        if now != seen:
            fold()
            seen = now
        stop.wait(max(interval, 0.1))


def _advance(
    session: Session, paths: Paths, parallel: int, batches_per_step: int, until_batch: int | None
) -> Iterator[list[TableResult]]:
    runner = choose_runner(session, parallel)
    frontier = read_frontier(paths)
    restated = restate(session, runner, paths, frontier.batch, frontier.behind)
    frontier = _note_restated(paths, frontier, restated)
    settle(paths, restated)
    yield [TableResult(each.table, each.batch, 0) for each in restated if not each.error]
    # Read before the events, so that those of every window known by then are among them.
    closed = newest_batch(paths.windows, Application.reconcile(paths.source))
    # A removed state table is rebuilt; and decoding again may have found the first events of one.
    meant = {*frontier.versions, *frontier.behind, *read_changed_tables(paths)}
    gone = {t: 0 for t in meant if not has_table(_state_path(paths, t))}
    behind = {**{table: _reached(paths, table) for table in frontier.behind}, **gone}
    events = EventReader.open(paths.events)
    until = Position.MAX if until_batch is None else until_batch
    closed = min(closed, until)
    last = until if events.listing.newest_batch is None else min(until, events.listing.newest_batch)
    schemas = read_schemas(paths)
    with stage("state", "batch", max(last - frontier.batch, 0)) as progress:
        for step, is_end in plan_spans(events, frontier.batch, last, behind, batches_per_step):
            known = step.without(passed := _without_effect(step, schemas))
            behind = {table: batch for table, batch in behind.items() if table not in passed}
            # A dump may have ended after the last event.
            ended = closed if is_end else 0
            run = _StepRun(session, runner, paths, events, known, frontier, behind, schemas, ended, progress)
            results = run.merge_tables()
            failpoint("state.merged")
            frontier = run.note(results)
            failpoint("state.noted")
            behind = dict(frontier.behind)
            yield results
    # Last, so that a later result of the same table does not hide it.
    yield [TableResult(each.table, each.batch, 0, each.error) for each in restated if each.error]


def _without_effect(step: Step, schemas: Mapping[str, Sequence[SchemaVersion]]) -> set[str]:
    """Return the tables that have truncates only, and no schema yet: they came and went without a row."""
    return {
        table for table, counts in step.counts.items()
        if not counts.changes and not any(version.batch <= step.batch for version in schemas.get(table, ()))
    }


@dataclass(frozen=True)
class _StepRun:
    """One step: every table's events, then the frontier. The windows up to ``closed`` show which dumps are done."""

    session: Session
    runner: TaskRunner
    paths: Paths
    events: EventReader
    step: Step
    before: Frontier
    behind: Mapping[str, int]
    schemas: Mapping[str, list[SchemaVersion]]
    closed: int
    progress: Stage

    @property
    def batch(self) -> int:
        """The batch that state has reached after the step."""
        return max(self.step.batch, self.before.batch)

    def merge_tables(self) -> list[TableResult]:
        """Bring every table of the step up to its batch."""
        results = []
        size = WAVE_BYTES if self.runner.is_in_process else max(WAVE_BYTES, self.runner.parallel * TASK_BYTES)
        for wave in self.step.waves(size, SLICE_BYTES):
            self.progress.advance(0, note=wave[0] if len(wave) == 1 else f"{wave[0]} and {len(wave) - 1} more")
            for outcome in self._merge_wave(wave):
                results.append(self._result(outcome))
                self.progress.advance(0, self.step.counts[outcome.table].events)
        return sorted(results, key=lambda result: result.table)

    def note(self, results: list[TableResult]) -> Frontier:
        """Append the frontier row of this step; a step done twice appends equal rows."""
        failed = {r.table: r.batch for r in results if r.error}
        tried = {r.table for r in results}
        versions = {t: v for t, v in self.before.versions.items() if t not in tried}
        versions |= {r.table: r.version for r in results if not r.error}
        behind = {t: b for t, b in self.behind.items() if t not in tried} | failed
        position = max(at for at in (self.step.position, self.before.position) if at is not None)
        frontier = Frontier(self.batch, position, versions, behind)
        append_frontier(self.paths, frontier)
        self.progress.advance(self.batch - self.before.batch)
        if _report.is_due():
            logger.info("state reached batch %d, position %s: %d table(s), %d event(s)", self.batch, position,
                        len(tried), sum(r.events for r in results))
        return frontier

    def _merge_wave(self, tables: Sequence[str]) -> Iterator[SliceResult]:
        """Merge tables whose events together fit in memory, or one table whose events do not."""
        slices, failed = self._slices(tables)
        yield from failed
        if len(tables) == 1 and self.step.counts[tables[0]].size > SLICE_BYTES:
            yield from map(self._merge_large, slices)
        elif slices:
            wanted = Predicate(self.before.batch, self.batch, self.behind)
            counts = self.step.counts
            yield from merge_wave(self.runner, self.events, wanted, slices, lambda table: counts[table].size)

    def _slices(self, tables: Sequence[str]) -> tuple[list[Slice], list[SliceResult]]:
        """Return the slices of tables, without events; and what became of those that cannot be folded."""
        slices, failed = [], []
        for table in tables:
            try:
                part = self._slice(table)
                shape = shape_of(part.versions)
                if has_odd_names(shape):
                    with commit_lock(part.path):
                        prepare_odd_names(self.session, part.path, shape)
                slices.append(part)
            except StateError as error:
                failed.append(SliceResult.of_error(table, error))
        return slices, failed

    def _slice(self, table: str) -> Slice:
        versions = [v for v in self.schemas.get(table, []) if v.batch <= self.batch]
        if not versions:
            raise StateError(
                f"table {table}: events refer to a schema that is not in the schemas table",
                next_step=SCHEMA_LOST,
            )
        done = self._done(table)
        return Slice(
            table, _state_path(self.paths, table), _app(self.paths), self.batch, done,
            tuple(v.schema for v in versions),
            (*(v.schema for v in versions if v.batch > done), versions[-1].schema), NO_EVENTS,
        )

    def _done(self, table: str) -> int:
        return self.behind.get(table, self.before.batch)

    def _merge_large(self, part: Slice) -> SliceResult:
        """Merge a table whose events in this step are too many for one task."""

        def truncated(after: int) -> Position | None:
            return max((at for batch, at in self.step.truncates.get(part.table, ()) if batch > after), default=None)

        return merge_large(self.runner, self.events, part, self.step.counts[part.table].size, truncated)

    def _result(self, outcome: SliceResult) -> TableResult:
        table = outcome.table
        try:
            outcome.raise_error()
            return TableResult(table, self.batch, self.step.counts[table].events, version=outcome.version)
        except IncompatibleSchemaChange as change:
            error: StateError = change
            version = self._rebuild(table)
            if version is not None:
                return TableResult(table, self.batch, self.step.counts[table].events, version=version)
        except StateError as other:
            error = other
        logger.error("%s", error)
        return TableResult(table, max(self._done(table), _reached(self.paths, table)), 0, error)

    def _rebuild(self, table: str) -> int | None:
        """Rebuild a table with an incompatible change, if a dump has returned its rows since; return its version."""
        versions = [v for v in self.schemas[table] if v.batch <= self.batch]
        compatible = versions[first_compatible_version([v.schema for v in versions]):]
        schemas = [v.schema for v in compatible]
        windows = closed_windows(self.paths, table, max(self.batch, self.closed))
        began = dumped_in(windows, schemas, compatible[0].since)
        if began is None:
            return None
        logger.warning("table %s is rebuilt from its dump: its schema changed", table)
        path, app = _state_path(self.paths, table), _app(self.paths)
        with commit_lock(path):
            rebuild(self.session, self.runner, self.paths, path, schemas, min(began, compatible[0].since), self.batch,
                    app=app, batch=self.batch)
            return open_table(path).version()


def _note_restated(paths: Paths, before: Frontier, restated: Sequence[Restated]) -> Frontier:
    """Append a frontier row with the versions that stand on the events there are now."""
    built = {each.table: each.version for each in restated if not each.error and each.table in before.versions}
    if before.position is None or not built:
        return before
    frontier = replace(before, versions={**before.versions, **built})
    append_frontier(paths, frontier)
    return frontier


def _state_path(paths: Paths, table: str) -> str:
    return paths.state(*split_qualified(table))


def _reached(paths: Paths, table: str) -> int:
    now = progress(_state_path(paths, table), _app(paths))
    return now.batch or 0 if now else 0


def _app(paths: Paths) -> str:
    return Application.state(paths.source)
