"""One task of reconcile: landing files and a plan in, ordered event files out.

A task is a pure function of the parts it reads and the plan: it reads each landing row once, decodes it, drops or
trims the chunk rows that the plan evicts (DBLog, algorithm 1, step 6), moves the others to their high watermark (step
7), orders and writes. It holds one batch of landing rows and at most about ``_SORTED_BYTES`` of events, whatever the
size of its files. Running tasks and committing what they wrote is left to ``runner`` and ``microbatch``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.failpoints import failpoint
from dblake.base.core.op import Op
from dblake.base.core.steps import step
from dblake.base.lake.files import filesystem
from dblake.landing.columns import (
    BATCH,
    CHUNK,
    CHUNK_ID,
    COMMITTED_AT,
    FORMAT,
    INCARNATION,
    KIND,
    LAST_IN_TXN,
    LEASE_EPOCH,
    LSN,
    PAYLOAD,
    ROW,
    SCHEMA_ID,
    TABLE,
    TRUNCATE,
    TXID,
)
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import AFTER, BEFORE, DECODER_INPUT, IMAGE, KEY, OP, PARTIAL
from dblake.payloads.decode.row_keys import key_text
from dblake.transform.events.files import (
    DUMP,
    EVENT_COLUMNS,
    LOG,
    ORIGIN,
    EventFile,
    sort_by_position,
    write_event_file,
)
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.plan import ClosingWindow, Evicted, Plan

COLUMNS = [LEASE_EPOCH, *DECODER_INPUT.names]
_REPEATED = [KIND, TABLE, SCHEMA_ID, CHUNK_ID, FORMAT]
_LOG_KINDS = pa.array([ROW, TRUNCATE])

_DECODED_ROWS = 16_384
"""Rows that are decoded at once: more no longer stay in the processor's cache."""
_DECODED_BYTES = 32 << 20
_SORTED_BYTES = 96 << 20
"""Events that are ordered, and written, together."""

ChunkCounts = Counter[tuple[str, int, str]]
"""Rows written by chunk id, batch of the high watermark and op."""


@dataclass(slots=True)
class TaskResult:
    """The files a task wrote, and how many rows of each chunk are in them."""

    files: list[EventFile] = field(default_factory=list)
    written: ChunkCounts = field(default_factory=Counter)


def write_events(parts: Iterable[RowGroups], plan: Plan, table: str) -> TaskResult:
    """Write the events of some landing files into the events table's folder; none is visible until committed."""
    written: ChunkCounts = Counter()
    return TaskResult(_write(_events(landed_rows(parts), plan, written), table), written)


def decode_events(parts: Iterable[RowGroups], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the events of some landing files, each batch sorted by position, without writing them."""
    return _events(landed_rows(parts), plan, Counter())


def write_dump_events(events: Iterable[pa.RecordBatch], table: str, op: str) -> TaskResult:
    """Write events of a dump that exist already, all of one ``op``; their columns are EVENT_COLUMNS."""
    written: ChunkCounts = Counter()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in events:
            for row in batch.select([CHUNK_ID, BATCH]).to_pylist():
                written[row[CHUNK_ID], row[BATCH], op] += 1
            yield sort_by_position(batch)

    return TaskResult(_write(counted(), table), written)


def _write(events: Iterable[pa.RecordBatch], table: str) -> list[EventFile]:
    """Write batches, each sorted by position, as ordered files of a bounded size."""
    files, waiting, size = list[EventFile](), list[pa.RecordBatch](), 0
    for batch in events:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _SORTED_BYTES:
            files.append(write_event_file(table, waiting))
            waiting, size = [], 0
    if waiting:
        files.append(write_event_file(table, waiting))
    failpoint("reconcile.task_written")
    return files


def as_event_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Give rows from Spark, which have the columns of EVENTS, the Arrow types of EVENT_COLUMNS."""
    columns = [rows.column(f.name) for f in EVENT_COLUMNS]
    return pa.RecordBatch.from_arrays(
        [_as_image(column) if f.type == IMAGE else column.cast(f.type)
         for column, f in zip(columns, EVENT_COLUMNS, strict=True)], schema=EVENT_COLUMNS,
    )


def _as_image(column: pa.MapArray) -> pa.MapArray:
    """Copy a map whose entries have other field names."""
    return pa.array(column.to_pylist(), IMAGE)


def landed_rows(parts: Iterable[RowGroups], columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """Read row groups of landing, so many rows at a time that a batch stays small."""
    for part in parts:
        system, inside = filesystem(part.path)
        with pq.ParquetFile(inside, filesystem=system, read_dictionary=_repeated_of(columns)) as parquet:
            for group in part.groups:
                of_group = parquet.metadata.row_group(group)
                width = of_group.total_byte_size // max(of_group.num_rows, 1) + 1
                rows = max(min(4 * _DECODED_ROWS, _DECODED_BYTES // width), 1)
                yield from parquet.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False)


def _repeated_of(columns: Sequence[str]) -> list[str]:
    return [name for name in _REPEATED if name in columns]


def log_rows(rows: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Select the log rows of the batches from ``first`` to ``last``."""
    is_log = pc.and_(pc.is_in(rows.column(KIND), _LOG_KINDS), _between(rows, first, last))
    return _where(rows, is_log)


def chunk_rows(rows: pa.RecordBatch, plan: Plan) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the chunk rows that belong to a closing window, by the window's number.

    Rows are bound to a window by chunk id, table and lease epoch.
    """
    numbers = plan.numbers
    rows = _where(rows, pc.and_(pc.equal(rows.column(KIND), CHUNK), _between(rows, 0, plan.last)))
    if not numbers or not rows.num_rows:
        return
    chunk, table = (rows.column(name).dictionary_encode() for name in (CHUNK_ID, TABLE))
    epoch = rows.column(LEASE_EPOCH).dictionary_encode()
    chunks, tables, epochs = len(chunk.dictionary), len(table.dictionary), len(epoch.dictionary)
    code = (chunk.indices.to_numpy() * tables + table.indices.to_numpy()) * epochs + epoch.indices.to_numpy()
    assert chunks, "chunk rows have a chunk id"
    for present in np.unique(code):
        name = (
            chunk.dictionary[present // epochs // tables].as_py(), table.dictionary[present // epochs % tables].as_py(),
            epoch.dictionary[present % epochs].as_py(),
        )
        if name in numbers:
            yield numbers[name], _where(rows, pa.array(code == present))


def slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows so that each part is decoded in the processor's cache, and a wide row does not take others along."""
    if not rows.num_rows:
        return
    sizes = pc.fill_null(pc.binary_length(rows.column(PAYLOAD)), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < rows.num_rows:
        before = ends[start - 1] if start else 0
        fitting = int(np.searchsorted(ends, before + _DECODED_BYTES, side="right")) - start
        count = max(min(_DECODED_ROWS, fitting), 1)
        yield rows.slice(start, count)
        start += count


def decode_log(rows: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Decode log rows as DECODED."""
    return decode(rows.select(DECODER_INPUT.names), plan.schemas)


def decode_chunk(rows: pa.RecordBatch, plan: Plan, *, keys_alone: bool = False) -> pa.RecordBatch:
    """Decode chunk rows, or their keys alone, as DECODED: all that is not the row's own, or its payload's, is null."""
    values = {KIND: pa.repeat(CHUNK, rows.num_rows)}
    values |= {name: rows.column(name) for name in (BATCH, "seq", TABLE, SCHEMA_ID, CHUNK_ID, FORMAT, PAYLOAD)}
    columns = [
        values[f.name].cast(f.type) if f.name in values else pa.nulls(rows.num_rows, f.type) for f in DECODER_INPUT
    ]
    return decode(pa.RecordBatch.from_arrays(columns, schema=DECODER_INPUT), plan.schemas, keys_alone=keys_alone)


def _events(rows: Iterable[pa.RecordBatch], plan: Plan, written: ChunkCounts) -> Iterator[pa.RecordBatch]:
    """Yield the events of landing rows, each batch sorted by position."""
    for landed in rows:
        for part in slices(log_rows(landed, plan.first, plan.last)):
            with step("reconcile.decode", rows=part.num_rows):
                events = sort_by_position(_log_events(decode_log(part, plan)))
            yield events
        for number, of_window in chunk_rows(landed, plan):
            if number in plan.truncated:
                continue
            for part in slices(of_window):
                with step("reconcile.decode", rows=part.num_rows, table=plan.windows[number].window.table):
                    decoded = decode_chunk(part, plan)
                yield from _surviving(decoded, plan, number, written)


def _surviving(rows: pa.RecordBatch, plan: Plan, number: int, written: ChunkCounts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk that no event in its window evicts, as events at its high watermark."""
    closing, evicted = plan.windows[number], plan.evicted(number)
    fills = evicted.fills
    if len(evicted.keys) or fills:
        keys = key_text(rows.column(KEY))
        remain = pc.invert(pc.is_in(keys, evicted.keys))
        rows, keys = rows.filter(remain), pc.filter(keys, remain)
        is_fill = pc.is_in(keys, pa.array(list(fills), pa.string()))
        trimmed = _trimmed(rows.filter(is_fill), pc.filter(keys, is_fill).to_pylist(), fills)
        trimmed = with_new_keys(trimmed, evicted, plan.primary_key(number))
        rows = rows.filter(pc.invert(is_fill))
        if trimmed.num_rows:
            yield _dump_events(trimmed, closing, Op.FILL, written)
    if rows.num_rows:
        yield _dump_events(rows, closing, Op.READ, written)


def _trimmed(rows: pa.RecordBatch, keys: list[str], fills: Mapping[str, frozenset[str]]) -> pa.RecordBatch:
    """Reduce rows to the columns that no image in the window carried; a row with nothing left is dropped."""
    images = [
        [(name, value) for name, value in image if name not in fills[key]]
        for key, image in zip(keys, rows.column(AFTER).to_pylist(), strict=True)
    ]
    trimmed = rows.set_column(rows.schema.get_field_index(AFTER), AFTER, pa.array(images, IMAGE))
    return trimmed.filter(pa.array([bool(image) for image in images], pa.bool_()))


def with_new_keys(rows: pa.RecordBatch, evicted: Evicted, primary_key: Sequence[str]) -> pa.RecordBatch:
    """Give decoded chunk rows the keys that they have at the end of their window."""
    if not evicted.moved or not rows.num_rows:
        return rows
    images = [
        list(zip(primary_key, evicted.moved[text], strict=True)) if text in evicted.moved else image
        for text, image in zip(key_text(rows.column(KEY)).to_pylist(), rows.column(KEY).to_pylist(), strict=True)
    ]
    return rows.set_column(rows.schema.get_field_index(KEY), KEY, pa.array(images, IMAGE))


def _log_events(decoded: pa.RecordBatch) -> pa.RecordBatch:
    """Turn decoded log rows into events at their own positions."""
    columns = [
        pa.repeat(LOG, decoded.num_rows) if name == ORIGIN else decoded.column(name) for name in EVENT_COLUMNS.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_COLUMNS)


def _dump_events(rows: pa.RecordBatch, closing: ClosingWindow, op: str, written: ChunkCounts) -> pa.RecordBatch:
    """Turn decoded chunk rows into events at their window's high watermark."""
    window, count = closing.window, rows.num_rows
    written[window.chunk_id, closing.batch, op] += count
    same = {
        INCARNATION: closing.high.incarnation, LSN: closing.high.lsn, TABLE: window.table, OP: op,
        SCHEMA_ID: window.schema_id, TXID: closing.txid, COMMITTED_AT: closing.committed_at, LAST_IN_TXN: False,
        ORIGIN: DUMP, CHUNK_ID: window.chunk_id, BATCH: closing.batch, PARTIAL: op == Op.FILL, BEFORE: None,
    }
    columns = [
        rows.column(f.name) if f.name not in same else _repeated(same[f.name], f.type, count)
        for f in EVENT_COLUMNS
    ]
    return sort_by_position(pa.RecordBatch.from_arrays(columns, schema=EVENT_COLUMNS))


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _between(rows: pa.RecordBatch, first: int, last: int) -> pa.BooleanArray:
    batch = rows.column(BATCH)
    return pc.and_(pc.greater_equal(batch, first), pc.less_equal(batch, last))


def _where(rows: pa.RecordBatch, condition: pa.BooleanArray) -> pa.RecordBatch:
    return rows if pc.all(condition).as_py() else rows.filter(condition)
