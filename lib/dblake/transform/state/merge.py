"""The events of one table in one step → its state table, in one commit.

Promise: no row returns to an older position, deletes included. The commit carries the landing batch up to which events
were folded in, so the same slice a second time changes nothing. A commit that loses to another writer's (OPTIMIZE, a
second state job) is tried again from a fresh read. Tombstones stay, with nothing but their key and position, until
maintenance removes them. Runs in a task without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import IncompatibleSchemaChange, StateError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.steps import step
from dblake.base.lake.locks import commit_lock
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.state.events import newest_truncate
from dblake.transform.state.file_writer import FileWriter
from dblake.transform.state.files import Columns, StateFile, TableFiles, data_file
from dblake.transform.state.fold import fold, folded_schema
from dblake.transform.state.moved import read_rows, supply_moved
from dblake.transform.state.runner import from_bytes, to_bytes
from dblake.transform.state.shape import Shape, require_one_key, shape_of
from dblake.transform.state.table import prepare, progress, progress_of
from dblake.transform.state.upsert import Change, Rewritten, RunAll, first_rows, upsert


class Bring(Protocol):
    """Folds the events after a batch and brings them into the files of a table, which may be new; commits nothing."""

    def __call__(self, target: TableFiles, shape: Shape, after: int, *, is_new: bool) -> Rewritten:
        """Return the files removed and added."""


@dataclass(frozen=True)
class Slice:
    """One table's part of a step, a value that can be sent to an executor.

    ``events`` begin after batch ``done`` and end with ``batch``; their columns are ``fold.NEEDED``. ``versions`` are
    the table's schemas up to ``batch``, oldest first. ``recent`` are the schemas of events after ``done``, and the
    newest one.
    """

    table: str
    path: str
    app: str
    batch: int
    done: int
    versions: tuple[TableSchema, ...]
    recent: tuple[TableSchema, ...]
    events: pa.Table

    def __getstate__(self) -> dict[str, Any]:
        # Pickled, a slice of a larger table would take all of that with it.
        return {**self.__dict__, "events": to_bytes(self.events)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, events=from_bytes(state["events"]))


NO_EVENTS = pa.table({})


@dataclass(frozen=True)
class SliceResult:
    """What became of a slice: the table's version after it, or why the table could not take it."""

    table: str
    version: int = 0
    error: str | None = None
    next_step: str = ""
    is_broken: bool = False
    """True if a dump of the table can repair it."""

    @classmethod
    def of_error(cls, table: str, error: StateError) -> SliceResult:
        """Return the outcome of a table that cannot take its events."""
        return cls(table, 0, error.what, error.next_step, isinstance(error, IncompatibleSchemaChange))

    def raise_error(self) -> None:
        """Raise the error that the task met, if any."""
        if self.error is not None:
            raise (IncompatibleSchemaChange if self.is_broken else StateError)(self.error, next_step=self.next_step)


def merge_slice(part: Slice) -> SliceResult:
    """Fold a slice and merge it into its table."""

    def bring(target: TableFiles, shape: Shape, after: int, *, is_new: bool) -> Rewritten:
        events = part.events.filter(pc.greater(part.events["batch"], after)) if after > part.done else part.events
        truncated_at = newest_truncate(events)
        return bring_rows(target, shape, [fold(events, shape, truncated_at)], truncated_at, run_here, is_new=is_new)

    return merge_events(part, bring)


def merge_events(part: Slice, bring: Bring) -> SliceResult:
    """Merge a slice's events into its table; a table that cannot take them is an outcome, not an error."""
    try:
        with step("state.fold", table=part.table, until_batch=part.batch):
            version = _merge(part, bring)
        failpoint("state.table")
        return SliceResult(part.table, version)
    except StateError as error:
        return SliceResult.of_error(part.table, error)


@retry_on_conflict
def _merge(part: Slice, bring: Bring) -> int:
    with commit_lock(part.path):
        now = progress(part.path, part.app)
        reached = now.batch or 0 if now else 0
        if reached >= part.batch and now is not None:
            return now.version
        # Also of those in between: a table may have had no key for a while, or another one.
        require_one_key(part.recent)
        target, shape = prepare(part.path, shape_of(part.versions))
        is_new = progress_of(target.table, part.app).batch is None
        result = bring(target, shape, max(part.done, reached), is_new=is_new)
        with step("state.commit", table=part.table, files_added=len(result.adds), files_removed=len(result.removed)):
            return target.commit(result.adds, result.removed, part.app, part.batch)


def grow_table(part: Slice) -> None:
    """Give a slice's table the shape that its events need; one that cannot have it stays, for the merge to report."""
    with suppress(StateError), commit_lock(part.path):
        require_one_key(part.recent)
        prepare(part.path, shape_of(part.versions))


def bring_rows(
    target: TableFiles, shape: Shape, parts: Iterable[pa.Table], truncated_at: Position | None, run_all: RunAll, *,
    is_new: bool,
) -> Rewritten:
    """Bring folded rows, no key twice, into a table."""
    if is_new:
        return write_first(target.path, target.columns, shape, parts)
    # Without a key, state has every row created, and truncates are in events only.
    truncated_at = truncated_at if shape.primary_key else None
    return upsert_parts(target.path, target.columns, target.files(), shape, parts, truncated_at, run_all)


def write_first(path: str, columns: Columns, shape: Shape, parts: Iterable[pa.Table]) -> Rewritten:
    """Write folded rows for a table that has none."""
    writer = FileWriter(path, columns)
    for rows in parts:
        writer.write(first_rows(rows, shape))
    return Rewritten(adds=writer.close())


def upsert_parts(
    path: str, columns: Columns, there: Sequence[StateFile], shape: Shape, parts: Iterable[pa.Table],
    truncated_at: Position | None, run_all: RunAll,
) -> Rewritten:
    """Bring folded rows into the files of a table, part by part: each finds the files as the part before left them.

    A truncate without a row after it is brought in by an empty part.
    """
    files = {file.path: file for file in there}
    before, adds = dict(files), {}
    parts = iter(parts)
    first = next(parts, None if truncated_at is None else folded_schema(shape).empty_table())
    for rows in () if first is None else chain((first,), parts):
        change = Change(supply_from(path, columns, there, shape, rows), shape, truncated_at)
        found = upsert(path, columns, list(files.values()), change, run_all)
        for file in found.removed:
            del files[file.path]
        for add in found.adds:
            files[add.path], adds[add.path] = data_file(add, columns), add
    return Rewritten(
        [file for path, file in before.items() if path not in files],
        [add for path, add in adds.items() if path in files],
    )


def supply_from(
    path: str, columns: Columns, there: Sequence[StateFile], shape: Shape, folded: pa.Table
) -> pa.Table:
    """Give folded rows the columns that only their old key's row in these files has."""
    return supply_moved(folded, lambda keys: read_rows(path, columns, there, shape, keys))


def run_here(task: Callable[[list[StateFile]], Rewritten], groups: Sequence[list[StateFile]]) -> Iterable[Rewritten]:
    """Rewrite the groups one after the other."""
    return map(task, groups)
