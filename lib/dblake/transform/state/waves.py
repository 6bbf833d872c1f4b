"""The tables of a step → state: where their events are read, folded and merged.

Place: between ``run``, which divides a step into waves, and ``merge``, which brings one table up to date. In this
process the events of a wave are read once and folded in threads. On executors each task reads the events of its own
tables, so no event passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from dblake.base.core.arrays import copy_rows
from dblake.base.core.position import Position
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader, FileSpan, read_span
from dblake.transform.state.events import split_tables
from dblake.transform.state.executors import bring_on_executors
from dblake.transform.state.files import TableFiles
from dblake.transform.state.fold import NEEDED
from dblake.transform.state.key_ranges import fold_ranges
from dblake.transform.state.merge import Slice, SliceResult, bring_rows, grow_table, merge_events, merge_slice
from dblake.transform.state.runner import TaskRunner
from dblake.transform.state.shape import Shape
from dblake.transform.state.upsert import Rewritten

_COLUMNS = ("table", *NEEDED)


def merge_wave(
    runner: TaskRunner, events: EventReader, predicate: Predicate, slices: Sequence[Slice],
    size_of: Callable[[str], float],
) -> Iterator[SliceResult]:
    """Merge tables whose events together fit in memory; ``slices`` are without events, which fit ``predicate``."""
    if runner.is_in_process:
        by_table = _by_table(events.read(_of_tables(predicate, slices), _COLUMNS))
        yield from runner.run_all(merge_slice, _with_events(slices, by_table))
        return
    groups = [
        _Group(events.path, tuple(events.spans(of_group)), of_group, tuple(group))
        for group in _balanced(slices, 2 * runner.parallel, size_of) for of_group in [_of_tables(predicate, group)]
    ]
    for results in runner.run_all(_merge_group, groups):
        yield from results


def merge_large(
    runner: TaskRunner, events: EventReader, part: Slice, size: float, truncated: Callable[[int], Position | None]
) -> SliceResult:
    """Merge a table whose events in a step, of about ``size`` bytes, are too many for one task: by key ranges.

    ``truncated`` returns its newest truncate after a batch.
    """

    def bring(target: TableFiles, shape: Shape, after: int, *, is_new: bool) -> Rewritten:
        at, predicate = truncated(after), Predicate(after, part.batch, tables=(part.table,))
        folded = partial(fold_ranges, events, predicate, shape, at, size, runner)
        if runner.is_in_process:
            return bring_rows(target, shape, folded(_as_is), at, runner.run_all, is_new=is_new)
        return bring_on_executors(target, shape, folded, at, runner, is_new=is_new)

    if not runner.is_in_process:
        # Before this process holds the table's lock: a type that became wider is written again by a task.
        list(runner.run_all(grow_table, [part]))
    return merge_events(part, bring)


def _as_is(rows: pa.Table) -> pa.Table:
    return rows


@dataclass(frozen=True)
class _Group:
    """Tables that one task merges, and where their events are."""

    path: str
    spans: tuple[FileSpan, ...]
    predicate: Predicate
    slices: tuple[Slice, ...]


def _merge_group(group: _Group) -> list[SliceResult]:
    rows = (rows for span in group.spans for rows in read_span(group.path, span, group.predicate, _COLUMNS))
    return [merge_slice(part) for part in _with_events(group.slices, _by_table(rows))]


def _by_table(portions: Iterable[pa.Table]) -> dict[str, pa.Table]:
    chunks = [copy_rows(rows) for rows in portions]
    return split_tables(pa.concat_tables(chunks)) if chunks else {}


def _with_events(slices: Iterable[Slice], by_table: dict[str, pa.Table]) -> list[Slice]:
    return [replace(part, events=by_table.pop(part.table)) for part in slices if part.table in by_table]


def _of_tables(predicate: Predicate, slices: Iterable[Slice]) -> Predicate:
    return replace(predicate, tables=frozenset(part.table for part in slices))


def _balanced(slices: Iterable[Slice], count: int, size_of: Callable[[str], float]) -> list[list[Slice]]:
    """Divide tables among at most ``count`` groups of about the same size."""
    groups: list[list[Slice]] = [[] for _ in range(count)]
    sizes = [0.0] * count
    for part in sorted(slices, key=lambda part: -size_of(part.table)):
        least = sizes.index(min(sizes))
        groups[least].append(part)
        sizes[least] += max(size_of(part.table), 1)
    return [group for group in groups if group]
