"""Compare the verification chunks that have landed with state, and append the results to the ledger.

Place: right of state; needs no JVM and no database. A chunk is compared as soon as state holds all events of the batch
that has its high watermark. State may be ahead of the chunk. **Only keys without an event that the chunk may not
reflect are compared**, in the window or after it, and the others are counted as skipped. Why this yields no false
difference:

1. Let key K have no event after the chunk's low watermark, nor one before it that the chunk's snapshot does not see,
   among all events up to batch R, which the events table holds.
2. The chunk's transaction sees what committed before its low watermark and is visible (``core.window``), and perhaps
   later transactions, which all lie before its high watermark and so among the events. None of them touched K. So the
   chunk has K as all events of K up to R leave it, or does not have it if they leave none.
3. State holds, when it is read, all events up to the high watermark's batch, and others up to R. It is read before the
   events, so R is not older. All events of K are among the former. So state has K as they leave it.

A key of state that no chunk returned is extra if it has no such event since the first chunk's low watermark: ranges
follow one another, so one of the chunks would have returned it. That is decided once, with the table's last chunk, and
not by comparing keys with the ends of ranges, whose order only the database knows (collations).

Not all changes have events. Capture marks a chunk whose table is known to have changed without events; that, a truncate
or another schema since the read make a chunk ``repeat``: it is not compared, and the table is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.errors import StateError, TableUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.window import Snapshot
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_arrow
from dblake.base.lake.schemas import SchemaVersion, read_schemas
from dblake.base.lake.tables import has_table, open_table
from dblake.operate.verification.compare import absent_keys, align_state, are_among, compare_rows, typed_rows, without
from dblake.operate.verification.findings import WrongRows, find_wrong
from dblake.operate.verification.landed import EndedChunk, find_whole, read_ended, read_rows
from dblake.operate.verification.ledger import (
    ChunkDifferences,
    ChunkResult,
    Round,
    append_results,
    done_batch,
    read_ledger,
    read_rounds,
    summarize,
)
from dblake.operate.verification.partial_result import PartialResult
from dblake.operate.verification.state_rows import TableState, repeated_keys
from dblake.operate.verification.touched import Read, Touched, schema_change
from dblake.transform.state.shape import Shape, shape_of, widened_to_fit

_GROUP_ROWS = 500_000
"""Rows whose results are committed together."""
GROUP_BYTES = 64 << 20
"""Rows that are compared with state together: more need more memory, fewer read the files of state more often."""

_Waiting = dict[str, tuple[EndedChunk, list[pa.Table]]]
"""Rows that wait to be compared, by chunk id."""

logger = logging.getLogger(__name__)


def comparable_batch(paths: Paths) -> int:
    """Return the newest landing batch up to which state holds all events."""
    if not has_table(paths.events):
        return 0
    # Before events are opened, so that they are at least as far.
    folded, events = read_frontier(paths).batch, open_table(paths.events)
    reconciled = events.transaction_version(Application.reconcile(paths.source)) or 0
    (row,) = query_arrow(
        events, f"SELECT min(batch) AS batch FROM t WHERE batch > {folded} AND batch <= {reconciled}"
    ).to_pylist()
    return max(folded, reconciled if row["batch"] is None else row["batch"] - 1)


def compare_landed(paths: Paths) -> int:
    """Compare all chunks that can be; return their number. Safe beside another process that does the same.

    Raises StateError if a table's state cannot be compared at all.
    """
    if not has_table(paths.landing):
        return 0
    done, upto = done_batch(paths), comparable_batch(paths)
    if upto <= done:
        return 0
    compared = 0
    for group in _groups(read_ended(paths, done + 1, upto)):
        results = _compare_group(paths, group)
        failpoint("verify.compared")
        try:
            append_results(paths, results, group[-1].batch)
        except TableUnavailable:
            # Another process compares the same chunks; what it has left is compared by the next call.
            break
        failpoint("verify.appended")
        compared += len(results)
        logger.info("compared %d chunks with state, up to batch %d", len(results), group[-1].batch)
    return compared


def _groups(chunks: Sequence[EndedChunk]) -> Iterator[list[EndedChunk]]:
    """Cut chunks between batches into groups of about ``_GROUP_ROWS`` rows."""
    group: list[EndedChunk] = []
    for chunk in chunks:
        if group and chunk.batch != group[-1].batch and sum(each.rows for each in group) >= _GROUP_ROWS:
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _compare_group(paths: Paths, group: Sequence[EndedChunk]) -> list[ChunkResult]:
    results = []
    for table in dict.fromkeys(chunk.table for chunk in group):
        results += _compare_table(paths, table, [chunk for chunk in group if chunk.table == table])
    return results


def _compare_table(paths: Paths, table: str, chunks: Sequence[EndedChunk]) -> list[ChunkResult]:
    """Compare chunks of one table; the order in which tables are read is part of the proof above."""
    behind = table in read_frontier(paths).behind
    state = TableState(paths, table)
    versions = read_schemas(paths).get(table, [])
    if not versions:
        return [_result(chunk, repeat="its schema has not been reconciled") for chunk in chunks]
    newest = versions[-1].schema
    touched = Touched(paths, table, newest.primary_key, [_read_of(chunk) for chunk in chunks])
    schemas = {version.schema.schema_id: version.schema for version in versions}
    table_state = _TableState(paths, state, touched, schemas, versions, behind, _earlier(paths, table, chunks))
    whole = find_whole(paths, [chunk for chunk in chunks if chunk.window.schema_id in schemas])
    results, comparable, last = dict[str, ChunkResult](), list[EndedChunk](), list[EndedChunk]()
    for chunk in chunks:
        why = table_state.why_repeat(chunk)
        if why is None and chunk.window.chunk_id not in whole:
            why = "landing no longer holds its rows"
        if why is None and chunk.began:
            last.append(chunk)
        elif why is None:
            comparable.append(chunk)
        results[chunk.window.chunk_id] = _result(chunk, repeat=why)
    results |= {result.chunk_id: result for result in table_state.compare(comparable)}
    for chunk in last:
        own = [result for result in results.values() if result.round == chunk.round]
        results[chunk.window.chunk_id] = table_state.close(chunk, own)
    return [results[chunk.window.chunk_id] for chunk in chunks]


def _earlier(paths: Paths, table: str, chunks: Sequence[EndedChunk]) -> dict[Round, WrongRows]:
    """Return for each chunk's reading of the table what the readings before it found."""
    found = {}
    for current in {chunk.round for chunk in chunks}:
        rounds = [] if current.number == 1 else read_rounds(paths, current.verification_id).get(
            (current.verification_id, table), []
        )
        found[current] = find_wrong(each for each in rounds if each.round < current.number)
    return found


@dataclass(frozen=True)
class _TableState:
    """What all chunks of a table are compared with; ``earlier`` is what was wrong before each reading."""

    paths: Paths
    rows: TableState
    touched: Touched
    schemas: dict[str, TableSchema]
    versions: list[SchemaVersion]
    behind: bool
    earlier: dict[Round, WrongRows]

    def why_repeat(self, chunk: EndedChunk) -> str | None:
        """Return why a chunk cannot be compared, None if it can."""
        read = _read_of(chunk)
        if chunk.repeat:
            return chunk.repeat
        if self.behind:
            return "state of the table is behind"
        if schema_change(self.versions, chunk.window.schema_id, read.low):
            return "the schema changed"
        if self.touched.has_truncate(read):
            return "the table was truncated"
        return None

    def shape(self) -> Shape:
        """Return the shape of the state table, under its newest schema. Raises StateError for an impossible one."""
        return widened_to_fit(shape_of([version.schema for version in self.versions]), self.rows.types)

    def compare(self, chunks: Sequence[EndedChunk]) -> list[ChunkResult]:
        """Compare the rows of chunks with those of state that have their keys."""
        if not chunks:
            return []
        try:
            shape = self.shape()
        except StateError as error:
            return [_result(chunk, repeat=error.what) for chunk in chunks]
        compared = {chunk.window.chunk_id: PartialResult(_result(chunk)) for chunk in chunks}
        waiting, size = _Waiting(), 0
        for chunk, decoded in read_rows(self.paths, chunks, self.schemas):
            rows = typed_rows(decoded, shape)
            waiting.setdefault(chunk.window.chunk_id, (chunk, []))[1].append(rows)
            size += rows.nbytes
            if size >= GROUP_BYTES:
                self._compare_waiting(waiting, shape, compared)
                waiting, size = _Waiting(), 0
        self._compare_waiting(waiting, shape, compared)
        return [each.result for each in compared.values()]

    def _compare_waiting(self, waiting: _Waiting, shape: Shape, compared: dict[str, PartialResult]) -> None:
        """Compare rows of several chunks together: the rows of one are in many files of state."""
        parts, keys = list[tuple[EndedChunk, pa.Table, np.ndarray]](), list[pa.Array]()
        for chunk, tables in waiting.values():
            rows = pa.concat_tables(tables)
            is_touched = are_among(rows["_key"], self.touched.keys(_read_of(chunk)).chunks)
            parts.append((chunk, rows, is_touched))
            # State may hold newer and larger values of the others.
            keys += rows["_key"].filter(pa.array(~is_touched)).chunks
        untouched = pa.chunked_array(keys, pa.string())
        state = self.rows.with_keys(untouched, [column.name for column in shape.current])
        repeated = pa.array(repeated_keys(state), pa.string())
        aligned, first = align_state(untouched, state), 0
        for chunk, rows, is_touched in parts:
            count = int((~is_touched).sum())
            result = self._compare_chunk(chunk, rows, is_touched, aligned.slice(first, count), repeated, shape)
            compared[chunk.window.chunk_id].add(result, rows)
            first += count

    def _compare_chunk(
        self, chunk: EndedChunk, source: pa.Table, is_touched: np.ndarray, state: pa.Table, repeated: pa.Array,
        shape: Shape,
    ) -> ChunkResult:
        """Compare rows of a chunk; ``state`` has those of the untouched ones."""
        untouched = source.filter(pa.array(~is_touched))
        skipped = join_chunks(source["_key"].filter(pa.array(is_touched)))
        twice = untouched["_key"].filter(pc.is_in(untouched["_key"], value_set=repeated)).to_pylist()
        return replace(
            _result(chunk), rows_compared=untouched.num_rows, rows_skipped=len(skipped),
            differences=replace(compare_rows(untouched, state, shape), extra=twice),
            skipped_keys=skipped.filter(pc.is_in(skipped, value_set=self._suspects(chunk))).to_pylist(),
        )

    def close(self, last: EndedChunk, others: Sequence[ChunkResult]) -> ChunkResult:
        """Return the result of a reading's last chunk. ``others`` are results that the ledger does not have yet."""
        result = self._find_extra(last)
        if result.repeat or not last.round.repaired:
            return result
        before, now = self.earlier[last.round], datetime.now(UTC)
        rows = read_ledger(self.paths, last.round.verification_id, last.table)
        own = [row for row in rows if row["round"] == last.round.number]
        reading = summarize([*own, *(each.as_row(now) for each in (*others, result))])
        return replace(result, repaired=max(before.count - before.after(reading).count, 0))

    def _find_extra(self, last: EndedChunk) -> ChunkResult:
        """Return the keys of state that no chunk of the last one's request returned, as the last one's result."""
        suspects = self._suspects(last)
        if last.sampled and not len(suspects):
            return _result(last)
        chunks = [
            chunk for chunk in read_ended(self.paths, 1, last.batch, table=last.table)
            if chunk.round == last.round and not chunk.began
        ]
        if len(find_whole(self.paths, chunks)) < len(chunks):
            return _result(last, repeat="landing no longer holds the rows of its chunks")
        returned, shape = list[pa.Array](), self._keys_only()
        for _, rows in read_rows(self.paths, chunks, self.schemas):
            returned += typed_rows(rows, shape)["_key"].chunks
        touched, extra = self.touched.keys(_read_of(last)), list[str]()
        unread = without(suspects, returned)
        if last.sampled:
            return replace(_result(last), skipped_keys=unread.to_pylist())
        for keys in self.rows.live_keys():
            own = keys.filter(pc.is_in(keys, value_set=suspects)) if last.round.keyed else keys
            extra += absent_keys(own, returned, touched).to_pylist()
        skipped = unread.filter(pa.array(are_among(pa.chunked_array([unread]), touched.chunks))).to_pylist()
        return replace(_result(last), differences=ChunkDifferences(extra=extra), skipped_keys=skipped)

    def _suspects(self, chunk: EndedChunk) -> pa.Array:
        """Return the keys that were wrong before a reading of the table: a keyed one reads just these."""
        return pa.array(self.earlier[chunk.round].keys or (), pa.string())

    def _keys_only(self) -> Shape:
        shape = shape_of([self.versions[-1].schema])
        return replace(shape, columns=tuple(c for c in shape.columns if c.name in shape.primary_key))


def _read_of(chunk: EndedChunk) -> Read:
    """Return what a chunk reflects; for the last chunk what all of its request reflect."""
    if chunk.began:
        snapshot = chunk.began.snapshot
        return Read(chunk.began.position, Snapshot.parse(snapshot) if snapshot else None)
    return Read(chunk.window.low, chunk.window.snapshot)


def _result(chunk: EndedChunk, *, repeat: str | None = None) -> ChunkResult:
    return ChunkResult(
        chunk.round, chunk.table, chunk.window.chunk_id, chunk.window.high, chunk.batch,
        closing=chunk.began is not None, sampled=chunk.sampled, repeat=repeat,
    )
