"""One micro-batch of reconcile: new landing batches in, ordered event files out.

DBLog's algorithm 1 ("DBLog: A Watermark Based Change-Data-Capture Framework", section 3.2), for all chunk windows that
close in these batches at once. Only keys pass through the join; each task then reads, decodes, filters, orders and
writes landing's payloads once. Nothing is visible until the caller commits the files: ``reconciler`` does, and keeps
schemas and the ledger of windows beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.decode.columns import DELETE
from dblake.events.files import EventFile
from dblake.landing.columns import CHUNK_ID
from dblake.reconcile.batch_summary import Part, Survey, chunk_parts, file_parts, joined
from dblake.reconcile.dedupe import EVENTS, PARTIAL, TRUNCATED, evicted_keys, touched_windows
from dblake.reconcile.earlier_rows import beginnings, tables_before_in_landing, tables_with_unreturned_keys
from dblake.reconcile.keys import CHUNK_KEYS, IN_WINDOW, KNOWN, chunk_keys, in_window_keys, log_keys, returned_keys
from dblake.reconcile.known_keys import KnownKeys
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.phantoms import absent_keys, candidate_phantoms, dump_ends, phantoms
from dblake.reconcile.plan import Plan, closing_windows
from dblake.reconcile.runner import Runner
from dblake.reconcile.task import ChunkCounts, TaskResult
from dblake.reconcile.windows import ChunkName, Ending, parse_endings, require_row_counts

_FEW = 500_000
"""Keys up to which every task gets them all. Otherwise the rows they are compared with are shuffled."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The event files of a micro-batch, and how many rows of each chunk are in them.

    ``withheld`` is, by the id of its last chunk, why a dump deletes none of the keys that it did not return.
    """

    files: Sequence[EventFile]
    written: ChunkCounts
    withheld: Mapping[str, str]


class MicroBatch:
    """New landing batches, ``first`` to ``last``, with their survey; ``events`` is where tasks write."""

    def __init__(
        self, summary: Survey, first: int, last: int, schemas: Mapping[str, TableSchema], landing: LandingFiles,
        events: str, runner: Runner, known_keys: KnownKeys,
    ) -> None:
        self._summary, self._first, self._last, self._schemas = summary, first, last, schemas
        self._landing, self._events, self._runner, self._known_keys = landing, events, runner, known_keys

    def reconcile(self) -> Reconciled:
        """Write the events of these batches. Raises WindowInvariantViolated for a window that contradicts itself."""
        closing = [ending for ending in parse_endings(self._summary.watermarks) if ending.window]  # steps 2, 4
        plan = Plan(self._first, self._last, self._schemas, closing_windows(closing))
        chunks, written = self._chunks(closing), list[TaskResult]()                          # step 3: the chunks' rows
        withheld: dict[str, str] = {}
        if in_window := self._keys_in_windows(plan):                                         # step 5: low < e ≤ high
            plan = self._evicting(chunks, in_window, plan)                                   # step 6: remove e.key
        if ended := self._preceded([ending for ending in closing if ending.end.dump_start], chunks, plan):
            removals, withheld = self._phantoms(chunks, plan, ended)
            written += removals
        written += self._runner.write(joined(chunks, self._summary.parts), plan, self._events)  # step 7: append
        files = [file for result in written for file in result.files]
        return Reconciled(files, sum((result.written for result in written), Counter()), withheld)

    def _chunks(self, closing: Sequence[Ending]) -> list[Part]:
        """Find landing's chunk rows of the windows that close; raise if a window has other rows than it read."""
        counts: Counter[ChunkName] = Counter(self._summary.chunk_rows)
        earlier = [ending for ending in closing if ending.end.first_batch < self._first]
        parts: list[Part] = []
        if earlier:
            first = min(ending.end.first_batch for ending in earlier)
            files = self._landing.files(first, self._first - 1)
            chunk_ids = [ending.row.chunk_id for ending in earlier]
            earlier_counts, parts = chunk_parts(files, first, self._first - 1, chunk_ids)
            counts.update(earlier_counts)
        require_row_counts(closing, counts)
        return joined(parts, self._summary.chunk_parts)

    def _keys_in_windows(self, plan: Plan) -> DataFrame | None:
        """Return the keys of log events in the windows, as IN_WINDOW, from any batch; None if there are none."""
        if not plan.windows:
            return None
        files = self._landing.files_in_windows([closing.window for closing in plan.windows], plan.last)
        parts = file_parts(file.path for file in files)
        return self._runner.frame(parts, IN_WINDOW, partial(in_window_keys, plan=plan))

    def _evicting(self, chunks: Sequence[Part], in_window: DataFrame, plan: Plan) -> Plan:
        """Return a plan that evicts chunk rows of keys in their windows; only the keys of those chunks are decoded."""
        in_window = in_window.persist()
        try:
            touched = touched_windows(in_window).collect()
            plan = plan.with_truncated(int(row[CHUNK_ID]) for row in touched if row[TRUNCATED])
            windows = {int(row[CHUNK_ID]) for row in touched} - plan.truncated
            keys = self._runner.frame(chunks, CHUNK_KEYS, partial(chunk_keys, plan=plan, windows=windows))
            if keys is None:
                return plan
            few, partial_images = sum(row[EVENTS] for row in touched) <= _FEW, any(row[PARTIAL] for row in touched)
            return plan.with_evictions(evicted_keys(keys, in_window, few=few, partial=partial_images).toArrow())
        finally:
            in_window.unpersist()

    def _preceded(self, ended: Sequence[Ending], chunks: Sequence[Part], plan: Plan) -> list[Ending]:
        """Return the ends of dumps of tables that had rows before: no other dump can miss one.

        Left out are also those whose chunks in this micro-batch returned all keys of the rows before.
        """
        began = beginnings(ended)
        if not began:
            return []
        dumped = {self._schemas.get(ending.end.schema_id) for ending in ended}
        tables = self._known_keys.tables_before(began, filter(None, dumped))
        landed = tables_before_in_landing(self._summary.parts, plan, began) - tables
        if landed:
            tables |= tables_with_unreturned_keys(self._summary.parts, chunks, plan, ended, landed)
        return [ending for ending in ended if ending.row.table in tables]

    def _phantoms(
        self, chunks: Sequence[Part], plan: Plan, ended: Sequence[Ending]
    ) -> tuple[list[TaskResult], dict[str, str]]:
        """Write the events that delete keys that precede the dumps that end here and that the dumps did not return.

        Returns what was written, and why dumps delete nothing, by the ids of their last chunks.
        """
        tables = {ending.row.table for ending in ended}
        windows = {number for number, closing in enumerate(plan.windows) if closing.window.table in tables}
        known, truncates = self._known_keys.of_tables(ended, plan.schemas)
        log = self._runner.frame(self._summary.parts, KNOWN, partial(log_keys, plan=plan, tables=tables))
        returned = self._runner.frame(chunks, KNOWN, partial(returned_keys, plan=plan, windows=windows))
        known = reduce(DataFrame.unionByName, [rows for rows in (known, log, returned) if rows is not None])
        ends = self._runner.spark.createDataFrame(dump_ends(ended, self._with_new(truncates)))
        candidates = candidate_phantoms(known, ends).persist()
        try:
            count = candidates.count()
            if not count:
                return [], {}
            gone = absent_keys(candidates, known, ends, few=count <= _FEW)
            withheld = _withheld(ended, candidates, gone)
            if withheld:
                gone = gone.where(~F.col("chunk").isin(sorted(withheld)))
            return self._runner.write_frame(phantoms(gone, ends), self._events, DELETE), withheld
        finally:
            candidates.unpersist()

    def _with_new(self, truncates: Mapping[str, Sequence[Position]]) -> dict[str, list[Position]]:
        new = self._summary.truncates
        return {table: [*truncates.get(table, ()), *new.get(table, ())] for table in {*truncates, *new}}


def _withheld(ended: Sequence[Ending], candidates: DataFrame, gone: DataFrame) -> dict[str, str]:
    """Return why dumps delete none of their absent keys, by the ids of their last chunks."""
    limited = [ending for ending in ended if ending.end.max_removed is not None]
    if not limited:
        return {}
    known, absent = (
        {row["chunk"]: row["count"] for row in keys.groupBy("chunk").count().collect()} for keys in (candidates, gone)
    )
    return {
        ending.row.chunk_id: f"the dump did not return {absent[ending.row.chunk_id]:,} of "
                             f"{known[ending.row.chunk_id]:,} rows, more than it may delete; they stay"
        for ending in limited
        if ending.end.withholds(absent.get(ending.row.chunk_id, 0), known.get(ending.row.chunk_id, 0))
    }
