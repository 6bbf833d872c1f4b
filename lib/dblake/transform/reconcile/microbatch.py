"""One micro-batch: new landing batches in, and what becomes of their rows out.

DBLog's algorithm 1 ("DBLog: A Watermark Based Change-Data-Capture Framework", section 3.2), for all chunk windows that
close in these batches at once. It is composed here only: reconcile writes and commits the events, a live reading
decodes them and commits nothing. Only keys are compared, by a ``KeyJoin``; tasks then read, decode, filter, order and
write landing's payloads once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE
from dblake.transform.reconcile.batch_summary import LandingSurvey, RowGroups, chunk_parts, file_parts, joined
from dblake.transform.reconcile.earlier_rows import beginnings, tables_before_in_landing, tables_with_unreturned_keys
from dblake.transform.reconcile.followed_rows import ROW_EVENTS
from dblake.transform.reconcile.key_join import CHUNK, MOVED, TRUNCATED, KeyJoin, KeySource
from dblake.transform.reconcile.keys import (
    CHUNK_KEYS,
    IN_WINDOW,
    KNOWN,
    chunk_keys,
    in_window_keys,
    log_keys,
    returned_keys,
    row_events,
)
from dblake.transform.reconcile.known_keys import KnownKeys
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.phantoms import dump_ends
from dblake.transform.reconcile.plan import Plan, closing_windows
from dblake.transform.reconcile.windows import ChunkName, Ending, parse_endings, require_row_counts

ChooseJoin = Callable[[Iterable[RowGroups]], KeyJoin[Any]]
"""Returns the join for the keys of some files."""


@dataclass(frozen=True, slots=True)
class NewBatches:
    """Landing batches ``first`` to ``last``, with their survey; ``schemas`` are those known by then, by id."""

    summary: LandingSurvey
    first: int
    last: int
    schemas: Mapping[str, TableSchema]
    landing: LandingFiles


@dataclass(frozen=True, slots=True)
class Removals:
    """Events that delete phantoms, as rows of the join that found them.

    ``withheld`` is, by the id of its last chunk, why a dump deletes none of the keys that it did not return.
    """

    events: Any
    withheld: Mapping[str, str]


class MicroBatch:
    """The rule over new batches. A context manager: what it returns is valid inside the block."""

    def __init__(self, new: NewBatches, known_keys: KnownKeys, choose_join: ChooseJoin) -> None:
        self._new, self._known_keys, self._choose_join = new, known_keys, choose_join
        self._joins = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._joins.close()

    @cached_property
    def closing(self) -> list[Ending]:
        """The windows that close here (steps 2 and 4). Raises WindowInvariantViolated for one that is invalid."""
        endings = parse_endings(self._new.summary.watermarks, self._new.landing.oldest_batch)
        return [ending for ending in endings if ending.window]

    @property
    def parts(self) -> list[RowGroups]:
        """What has the payloads of all events: log rows of the new batches, chunk rows from any batch."""
        return joined(self._chunks, self._new.summary.parts)

    def plan(self) -> Plan:
        """Decide what becomes of the rows. Raises WindowInvariantViolated for a window that contradicts itself."""
        new = self._new
        plan = Plan(new.first, new.last, new.schemas, closing_windows(self.closing))
        chunks = self._chunks                                                                # step 3: the chunks' rows
        if not plan.windows:
            return plan
        files = new.landing.files_in_windows([closing.window for closing in plan.windows], plan.last)
        log = file_parts(file.path for file in files)
        join = self._joins.enter_context(self._choose_join([*log, *chunks]))
        in_window = join.read(KeySource(log, IN_WINDOW, partial(in_window_keys, plan=plan)))  # step 5: low < e ≤ high
        if in_window is None:
            return plan
        touched = join.touched_windows(in_window)
        plan = plan.with_truncated(map(int, touched.filter(touched[TRUNCATED])[CHUNK_ID].to_pylist()))
        windows = set(map(int, touched[CHUNK_ID].to_pylist())) - plan.truncated
        keys = join.read(KeySource(chunks, CHUNK_KEYS, partial(chunk_keys, plan=plan, windows=windows)))
        if keys is None:
            return plan
        moving = set(map(int, touched.filter(pc.greater(touched[MOVED], 0))[CHUNK_ID].to_pylist())) - plan.truncated
        followed = None
        if moving:
            events = join.read(KeySource(log, ROW_EVENTS, partial(row_events, plan=plan, windows=moving)))
            followed = None if events is None else join.follow(events, plan.with_snapshot)
        return join.evict(plan, keys, in_window, touched, followed)                          # step 6: remove e.key

    def removals(self, plan: Plan, ended: Sequence[Ending]) -> Removals | None:
        """Return the events that delete what dumps did not return that end with ``ended``; None if there are none."""
        ended = self._preceded([ending for ending in ended if ending.end.dump_start], plan)
        if not ended:
            return None
        tables = {ending.row.table for ending in ended}
        windows = {number for number, closing in enumerate(plan.windows) if closing.window.table in tables}
        known = self._known_keys.sources(ended, plan.schemas)
        parts = self._new.summary.parts
        sources = [
            *known.keys, KeySource(parts, KNOWN, partial(log_keys, plan=plan, tables=tables)),
            KeySource(self._chunks, KNOWN, partial(returned_keys, plan=plan, windows=windows)),
        ]
        join = self._joins.enter_context(self._choose_join(part for source in sources for part in source.parts))
        rows = [keys for source in sources if (keys := join.read(source)) is not None]
        if not rows:
            return None
        truncates = join.read(known.truncates)
        ends = dump_ends(ended, self._truncates([] if truncates is None else join.to_arrow(truncates).to_pylist()))
        candidates = join.candidates(rows, ends)
        counts = join.count_candidates(candidates)
        if not pc.sum(counts["absent"]).as_py():
            return None
        withheld = _withheld(ended, counts)
        return Removals(join.removals(candidates, ends, withheld), withheld)

    @cached_property
    def _chunks(self) -> list[RowGroups]:
        """Landing's chunk rows of the windows that close. Raises if a window has other rows than it read."""
        new = self._new
        counts: Counter[ChunkName] = Counter(new.summary.chunk_rows)
        earlier = [ending for ending in self.closing if ending.end.first_batch < new.first]
        parts: list[RowGroups] = []
        if earlier:
            first = min(ending.end.first_batch for ending in earlier)
            files = new.landing.files(first, new.first - 1)
            chunk_ids = [ending.row.chunk_id for ending in earlier]
            earlier_counts, parts = chunk_parts(files, first, new.first - 1, chunk_ids)
            counts.update(earlier_counts)
        require_row_counts(self.closing, counts)
        return joined(parts, new.summary.chunk_parts)

    def _preceded(self, ended: Sequence[Ending], plan: Plan) -> list[Ending]:
        """Return the ends of dumps of tables that had rows before: no other dump can miss one.

        Left out are also dumps whose chunks in this micro-batch returned all keys of the rows before, if the join for
        these rows holds them in this process.
        """
        began = beginnings(ended)
        if not began:
            return []
        parts = self._new.summary.parts
        dumped = {self._new.schemas.get(ending.end.schema_id) for ending in ended}
        tables = self._known_keys.tables_before(began, filter(None, dumped))
        landed = tables_before_in_landing(parts, plan, began) - tables
        if landed and not self._choose_join([*parts, *self._chunks]).is_in_process:
            tables |= landed
        elif landed:
            tables |= tables_with_unreturned_keys(parts, self._chunks, plan, ended, landed)
        return [ending for ending in ended if ending.row.table in tables]

    def _truncates(self, earlier: Iterable[Mapping[str, Any]]) -> dict[str, list[Position]]:
        truncates = {table: list(positions) for table, positions in self._new.summary.truncates.items()}
        for row in earlier:
            at = Position(row[INCARNATION], row[LSN], row[SEQ])
            truncates.setdefault(row[TABLE], []).append(at)
        return truncates


def _withheld(ended: Sequence[Ending], counts: pa.Table) -> dict[str, str]:
    """Return why dumps delete none of their absent keys, by the ids of their last chunks."""
    by_chunk = {row[CHUNK]: (row["absent"], row["candidates"]) for row in counts.to_pylist()}
    return {
        chunk: f"the dump did not return {absent:,} of {known:,} rows, more than it may delete; they stay"
        for ending in ended
        if ending.end.max_removed is not None and (chunk := ending.row.chunk_id) in by_chunk
        for absent, known in [by_chunk[chunk]]
        if ending.end.withholds(absent, known)
    }
