"""A large table's events, folded and merged on executors: no folded row passes through the driver.

Place: below ``waves`` and ``rebuild``; ``key_ranges`` shuffles the events. A table without rows is written by the tasks
that fold its key ranges. Otherwise these tasks keep their folded rows in files beside the table. Then each task brings
the ranges that may change the same files into them, one range after the other: two tasks never rewrite one file.
Guarantee: memory for one range and one row group in a task. VACUUM removes what a killed run kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import join
from dblake.transform.state.files import Columns, StateFile, TableFiles, ordered_keys
from dblake.transform.state.key_ranges import Taken
from dblake.transform.state.merge import run_here, supply_from, upsert_parts, write_first
from dblake.transform.state.runner import TaskRunner, from_bytes, to_bytes
from dblake.transform.state.shape import Shape
from dblake.transform.state.upsert import Rewritten


class FoldRanges(Protocol):
    """Folds a table's events by key ranges; ``key_ranges.fold_ranges`` but for its last argument."""

    def __call__(self, take: Callable[[pa.Table], Taken]) -> Iterator[Taken]:
        """Yield what ``take`` makes of the folded rows of each range."""


def bring_on_executors(
    target: TableFiles, shape: Shape, folded: FoldRanges, truncated_at: Position | None, runner: TaskRunner, *,
    is_new: bool,
) -> Rewritten:
    """Do what ``merge.bring_rows`` does, in tasks."""
    if is_new:
        return write_new(target.path, target.columns, shape, folded)
    folder, files = join(target.path, f"folded-{uuid.uuid4()}"), target.files()
    system, inside = filesystem(folder)
    system.create_dir(inside)
    try:
        kept = list(folded(_Keep(folder, target.path, target.columns, tuple(files), shape)))
        truncated_at = truncated_at if shape.primary_key else None
        groups = _groups(kept, files, truncated_at is not None)
        result = Rewritten()
        for part in runner.run_all(_Merge(target.path, target.columns, shape, truncated_at), groups):
            result.extend(part)
        return result
    finally:
        system.delete_dir(inside)


def write_new(path: str, columns: Columns, shape: Shape, folded: FoldRanges) -> Rewritten:
    """Write the files of a table that has no rows, one task for each key range."""
    result = Rewritten()
    for part in folded(_WriteNew(path, columns, shape)):
        result.extend(part)
    return result


@dataclass(frozen=True)
class _WriteNew:
    path: str
    columns: Columns
    shape: Shape

    def __call__(self, rows: pa.Table) -> Rewritten:
        return write_first(self.path, self.columns, self.shape, [rows])


@dataclass(frozen=True)
class _Kept:
    """A file with the folded rows of a key range; ``ranges`` are their keys' bounds, as in ``StateFile``.

    ``ranges`` is None if no row of a table can have one of the keys.
    """

    path: str
    ranges: Mapping[str, tuple[Any, Any]] | None

    def may_change(self, file: StateFile) -> bool:
        """Return True unless statistics rule out that a file has one of the keys."""
        if self.ranges is None:
            return False
        bounds = [(keys, file.ranges[name]) for name, keys in self.ranges.items() if name in file.ranges]
        return all(keys[0] <= rows[1] and rows[0] <= keys[1] for keys, rows in bounds)

    def read(self) -> pa.Table:
        """Return the folded rows that the file holds."""
        system, inside = filesystem(self.path)
        with system.open_input_file(inside) as source:
            return from_bytes(source.read())


@dataclass(frozen=True)
class _Keep:
    """Keeps folded rows, complete by what the rows of their old keys have."""

    folder: str
    path: str
    columns: Columns
    files: tuple[StateFile, ...]
    shape: Shape

    def __call__(self, rows: pa.Table) -> _Kept:
        rows = supply_from(self.path, self.columns, self.files, self.shape, rows)
        path = join(self.folder, f"{uuid.uuid4()}.arrow")
        system, inside = filesystem(path)
        with system.open_output_stream(inside) as sink:
            sink.write(to_bytes(rows))
        return _Kept(path, _key_ranges(rows, self.shape))


def _key_ranges(rows: pa.Table, shape: Shape) -> dict[str, tuple[Any, Any]] | None:
    if rows["_key"].null_count == rows.num_rows:
        return None
    bounds = {name: pc.min_max(rows[name]).as_py() for name in ordered_keys(rows, shape.primary_key)}
    return {name: (each["min"], each["max"]) for name, each in bounds.items()}


@dataclass(frozen=True)
class _MergeGroup:
    """Key ranges, and the files that they alone may change or write again with their new rows."""

    kept: tuple[_Kept, ...]
    files: tuple[StateFile, ...]


def _groups(kept: Sequence[_Kept], files: Sequence[StateFile], has_truncate: bool) -> list[_MergeGroup]:
    """Divide key ranges so that no file may be changed by two groups; a truncate may change every file."""
    if has_truncate:
        return [_MergeGroup(tuple(kept), tuple(files))]
    groups: list[tuple[list[_Kept], dict[str, StateFile]]] = []
    for one in kept:
        changed = {file.path: file for file in files if one.may_change(file)}
        joined, apart = [one], list[tuple[list[_Kept], dict[str, StateFile]]]()
        for ranges, theirs in groups:
            if changed.keys() & theirs.keys():
                joined, changed = [*ranges, *joined], changed | theirs
            else:
                apart.append((ranges, theirs))
        groups = [*apart, (joined, changed)]
    if groups:
        taken = set[str]().union(*(changed for _, changed in groups))
        groups[0][1].update((file.path, file) for file in files if file.path not in taken)
    return [_MergeGroup(tuple(ranges), tuple(changed.values())) for ranges, changed in groups]


@dataclass(frozen=True)
class _Merge:
    path: str
    columns: Columns
    shape: Shape
    truncated_at: Position | None

    def __call__(self, group: _MergeGroup) -> Rewritten:
        rows = (one.read() for one in group.kept)
        return upsert_parts(
            self.path, self.columns, group.files, self.shape, rows, self.truncated_at, run_here
        )
