"""Events → state: finds what is new by looking, folds it in steps, and notes after each where state has got to.

How far a table is stands in the table itself, so a run that died goes on where it was and does nothing twice. After
each step one row of ``frontier`` says which version of every state table holds which position: cut between two landing
batches, it is what lets many tables be read as of one point. A table that cannot take its events stays behind, by
name, in the results and in ``frontier.behind``, and is tried again by every later run; the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from dblake.core.errors import IncompatibleSchemaChange, StateError
from dblake.core.failpoints import failpoint
from dblake.core.names import split_qualified
from dblake.lake.frontier import Frontier, append_frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch
from dblake.lake.schemas import SchemaVersion, read_schemas
from dblake.redecode.ledger import changes
from dblake.state.fold import last_truncate
from dblake.state.merge import merge
from dblake.state.rebuild import dumped_in, rebuild
from dblake.state.restate import Restated, restate, settle
from dblake.state.shape import first_compatible_version, require_one_key, shape_of
from dblake.state.steps import Slice, Step, batch_ends, cuts, newer, steps, summary
from dblake.state.table import progress

logger = logging.getLogger(__name__)

@dataclass(frozen=True, slots=True)
class TableResult:
    """What a run did to one table: how many events it folded in, up to which batch, or why it could not."""

    table: str
    batch: int
    events: int
    error: StateError | None = None


def run_state(
    spark: SparkSession, paths: Paths, *, parallel: int = 4, batches_per_step: int = 1000,
    until_batch: int | None = None, stop: threading.Event | None = None,
) -> list[TableResult]:
    """Folds all events there are (up to ``until_batch``) into state; one result for each table touched.

    Ends after the step in hand once ``stop`` is set.
    """
    if not DeltaTable.is_deltatable(paths.events):
        return []
    results: dict[str, TableResult] = {}
    for done in _advance(spark, paths, parallel, batches_per_step, until_batch):
        for result in done:
            before = results.get(result.table)
            events = result.events + (before.events if before else 0)
            results[result.table] = TableResult(result.table, result.batch, events, result.error)
        if stop and stop.is_set():
            break
    return [results[table] for table in sorted(results)]


def events_version(paths: Paths) -> int | None:
    """The events table's newest version, for who wants to know cheaply whether anything came; None without a table."""
    return DeltaTable(paths.events).version() if DeltaTable.is_deltatable(paths.events) else None


def run_continuously(
    stop: threading.Event, paths: Paths, fold: Callable[[], list[TableResult]], interval: float
) -> None:
    """Folds whenever events have come, until asked to stop.

    A table that cannot take its events is logged, and tried again with the next ones.
    """
    seen: int | None = None
    while not stop.is_set():
        now = events_version(paths)
        if now != seen:
            fold()
            seen = now
        stop.wait(max(interval, 0.1))


def _advance(
    spark: SparkSession, paths: Paths, parallel: int, batches_per_step: int, until_batch: int | None
) -> Iterator[list[TableResult]]:
    frontier = read_frontier(paths)
    restated = restate(spark, paths, frontier.batch, frontier.behind)
    frontier = _note_restated(paths, frontier, restated)
    settle(paths, restated)
    yield [TableResult(each.table, each.batch, 0) for each in restated if not each.error]
    # Before events are looked at, so that none of a window known by then is missing among them.
    closed = newest_batch(paths.windows, Application.reconcile(paths.source))
    # Who removes a state table's folder wants it rebuilt; and decoding again may have found the first events of one.
    meant = {*frontier.versions, *frontier.behind, *changes(paths)}
    gone = {t: 0 for t in meant if not DeltaTable.is_deltatable(_state_path(paths, t))}
    behind = {**frontier.behind, **gone}
    events = newer(spark.read.format("delta").load(paths.events), frontier.batch, behind)
    if until_batch is not None:
        events, closed = events.where(events["batch"] <= until_batch), min(closed, until_batch)
    plan, all_of_them = _plan(events, frontier.batch, batches_per_step)
    schemas = read_schemas(paths) if plan else {}
    for step in plan:
        # A dump may have ended after the last event there is.
        ended = closed if all_of_them and step is plan[-1] else 0
        run = _StepRun(spark, paths, step, frontier, behind, schemas, ended)
        with ThreadPoolExecutor(parallel, thread_name_prefix="state") as pool:
            results = list(pool.map(run.fold_in, step.slices))
        failpoint("state.merged")
        frontier = run.note(results)
        failpoint("state.noted")
        behind = dict(frontier.behind)
        yield results
    # Last, so that what was folded into them nevertheless does not hide it.
    yield [TableResult(each.table, each.batch, 0, each.error) for each in restated if each.error]


def _plan(events: DataFrame, done: int, batches_per_step: int) -> tuple[list[Step], bool]:
    """The steps, and whether they take all events there are: a transaction that has not landed whole waits."""
    ends = batch_ends(events).collect()
    if not ends:
        return [], True
    # Without a cut there may still be tables that were left behind: what they lack lies before the frontier.
    plan = steps(summary(events, cuts(ends, done, batches_per_step) or [done]).collect())
    return plan, bool(plan) and plan[-1].batch == max(row["batch"] for row in ends)


@dataclass(frozen=True)
class _StepRun:
    """One step: each slice on its own, then the frontier. ``closed``: up to there its windows tell of dumps, too."""

    spark: SparkSession
    paths: Paths
    step: Step
    before: Frontier
    behind: Mapping[str, int]
    schemas: Mapping[str, list[SchemaVersion]]
    closed: int

    @property
    def batch(self) -> int:
        return max(self.step.batch, self.before.batch)

    def fold_in(self, part: Slice) -> TableResult:
        """Brings one table up to the step's batch."""
        with commit_lock(_state_path(self.paths, part.table)):
            return self._bring_up(part)

    def _bring_up(self, part: Slice) -> TableResult:
        path, app = _state_path(self.paths, part.table), _app(self.paths)
        known = progress(path, app)
        done = known.batch or 0 if known else 0
        if part.table not in self.behind:
            done = max(done, self.before.batch)
        # A session of its own: MERGE takes its transaction identifier from session settings.
        session = self.spark.newSession()
        events = session.read.format("delta").load(self.paths.events)
        events = events.where(
            (events["table"] == part.table) & (events["batch"] > done) & (events["batch"] <= self.batch)
        )
        if part.table in self.behind:
            # The slice was summed up from where the table was thought to be, and the table itself may be further back.
            part = replace(part, whole=False, truncated_at=last_truncate(events))
        try:
            self._fold(part, events, path, app, done)
        except StateError as error:
            logger.error("%s", error)
            return TableResult(part.table, done, 0, error)
        return TableResult(part.table, self.batch, part.events)

    def _fold(self, part: Slice, events: DataFrame, path: str, app: str, done: int) -> None:
        versions = self._versions(part.table)
        schemas = [v.schema for v in versions]
        try:
            # Also of those in between: a table may have had no key for a while, or another one.
            require_one_key([v.schema for v in versions if v.batch > done] + schemas[-1:])
            merge(events, path, shape_of(schemas), app=app, batch=self.batch, whole=part.whole,
                  truncated_at=part.truncated_at)
        except IncompatibleSchemaChange:
            if not self._rebuilt(events.sparkSession, versions, path, app):
                raise

    def note(self, results: list[TableResult]) -> Frontier:
        """Appends the frontier row of this step: a step done again adds a row that says the same."""
        failed = {r.table: r.batch for r in results if r.error}
        tried = {r.table for r in results}
        versions = {t: v for t, v in self.before.versions.items() if t not in tried}
        for table in tried - failed.keys():
            now = progress(_state_path(self.paths, table), _app(self.paths))
            if now is not None:
                versions[table] = now.version
        behind = {t: b for t, b in self.behind.items() if t not in tried} | failed
        position = max(self.step.position, self.before.position or self.step.position)
        frontier = Frontier(self.batch, position, versions, behind)
        append_frontier(self.paths, frontier)
        logger.info("state reached batch %d, position %s: %d table(s), %d event(s)", self.batch, position, len(tried),
                    sum(r.events for r in results))
        return frontier

    def _rebuilt(self, session: SparkSession, versions: list[SchemaVersion], path: str, app: str) -> bool:
        """Builds a table anew whose shape is broken, if a dump has returned its rows in the new one since."""
        whole = versions[first_compatible_version([v.schema for v in versions]):]
        table, schemas = whole[0].schema.table, [v.schema for v in whole]
        if not DeltaTable.is_deltatable(self.paths.windows):
            return False
        windows = session.read.format("delta").load(self.paths.windows)
        known = windows.where(f"batch <= {max(self.batch, self.closed)}")
        began = dumped_in(known, table, schemas, whole[0].since)
        if began is None:
            return False
        logger.warning("table %s is built anew from its dump: its shape changed", table)
        events = session.read.format("delta").load(self.paths.events).where(f"batch <= {self.batch}")
        rebuild(events.where(events["table"] == table), path, schemas, min(began, whole[0].since), app=app,
                batch=self.batch)
        return True

    def _versions(self, table: str) -> list[SchemaVersion]:
        versions = [v for v in self.schemas.get(table, []) if v.batch <= self.batch]
        if not versions:
            raise StateError(
                f"table {table}: events refer to a schema that is not in the schemas table",
                next_step="run reconcile from the start for this source",
            )
        return versions


def _note_restated(paths: Paths, before: Frontier, restated: Sequence[Restated]) -> Frontier:
    """Appends a frontier row with the versions that stand on the events there are now."""
    built = {each.table: each.version for each in restated if not each.error and each.table in before.versions}
    if before.position is None or not built:
        return before
    frontier = replace(before, versions={**before.versions, **built})
    append_frontier(paths, frontier)
    return frontier


def _state_path(paths: Paths, table: str) -> str:
    return paths.state(*split_qualified(table))


def _app(paths: Paths) -> str:
    return Application.state(paths.source)
