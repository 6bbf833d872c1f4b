"""Write event files, ordered by position and table, and describe them for the events table's Delta log.

Place: end of a reconcile task, and of maintenance's compaction. A file consists of segments, each of about
``_SEGMENT_BYTES`` in memory, of whole batches where these are smaller, and after those before it by position. Within a
segment, a table with many events has row groups of its own, ordered by position, so a reader of one table skips the
others; the rest share row groups.
Guarantee: statistics bound every value, so readers skip files and row groups by position, table, commit time, batch
and transaction, and a segment fits in a reader's memory, however wide its rows. A file becomes visible only with the
Delta commit that names it: the description (path, size, statistics) passes from the process that wrote the file to the
one that commits, which is left to ``reconcile.reconciler`` and ``maintenance.event_compaction``.
"""

from __future__ import annotations

import heapq
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.position import Position
from dblake.base.lake.files import filesystem
from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    INCARNATION,
    LAST_IN_TXN,
    LSN,
    SCHEMA_ID,
    SEQ,
    TABLE,
    TXID,
)
from dblake.payloads.decode.columns import AFTER, BEFORE, DECODED, KEY, KEY_BEFORE, OP, PARTIAL, UNDECODED

ORIGIN, LOG, DUMP = "origin", "log", "dump"

#: The columns of the events table; ``events.schema`` defines their meaning.
EVENT_COLUMNS = pa.schema(
    [
        *(DECODED.field(name) for name in (
            INCARNATION, LSN, SEQ, TABLE, OP, KEY, BEFORE, AFTER, SCHEMA_ID, TXID, COMMITTED_AT, LAST_IN_TXN,
        )),
        pa.field(ORIGIN, pa.string()),
        *(DECODED.field(name) for name in (CHUNK_ID, BATCH, PARTIAL, UNDECODED, KEY_BEFORE)),
    ]
)
#: The columns whose statistics the table's Delta log holds.
PRUNED_BY = (INCARNATION, LSN, TABLE, COMMITTED_AT, BATCH, TXID)

_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 16 << 20
_SEGMENT_BYTES = 32 << 20
_GROUPED_BYTES = 256 << 10
"""A table with so many bytes of images in a segment has row groups of its own there."""
_MEASURED_BYTES = 1 << 20
"""A segment ends within so many bytes of its size."""
# Not the values of images: they rarely repeat in a page, so the writer would abandon each dictionary half-way.
_DICTIONARIES = [
    TABLE, OP, SCHEMA_ID, ORIGIN, CHUNK_ID, "key.key_value.key", "before.key_value.key", "after.key_value.key",
    "key_before.key_value.key",
    "undecoded.list.element", INCARNATION, TXID, COMMITTED_AT, BATCH,
]


@dataclass(frozen=True, slots=True)
class EventFile:
    """A written file: its path in the table, size in bytes, row count, and statistics as Delta's JSON."""

    path: str
    size: int
    rows: int
    statistics: str


def write_event_file(table: str, batches: Iterable[pa.RecordBatch]) -> EventFile:
    """Write batches of EVENT_COLUMNS, each sorted by position, as one file; return the file.

    ``table`` is the table's folder or URL.
    """
    with EventFileWriter(table) as writer:
        writer.write(pa.Table.from_batches(merge_sorted(batches), EVENT_COLUMNS))
    return writer.file


class EventFileWriter:
    """Writes events, given in order of position, as one file of ``table``; ``file`` describes it after the block."""

    file: EventFile

    def __init__(self, table: str) -> None:
        self._name = f"part-{uuid.uuid4()}.zstd.parquet"
        self._files, folder = filesystem(table)
        self._path = f"{folder.rstrip('/')}/{self._name}"
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._bounds = _Bounds()

    def __enter__(self) -> Self:
        self._writer = pq.ParquetWriter(
            self._path, EVENT_COLUMNS, filesystem=self._files, compression="zstd", compression_level=1,
            use_dictionary=_DICTIONARIES, write_statistics=[*PRUNED_BY, SEQ],
        )
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None and self._waiting:
            self._write_segment(pa.concat_tables(self._waiting))
        self._writer.close()
        if failure is None:
            size = self._files.get_file_info(self._path).size
            self.file = EventFile(self._name, size, self._bounds.rows, self._bounds.as_json())

    def write(self, events: pa.Table) -> None:
        """Write events with EVENT_COLUMNS that follow those before."""
        for part in _split(events, _MEASURED_BYTES):
            self._waiting.append(part)
            self._bytes += part.nbytes
            if self._bytes >= _SEGMENT_BYTES:
                waiting = pa.concat_tables(self._waiting)
                # A reader of some batches reads the segments that they are in: it ends with a batch, if it has several.
                end = _last_change(waiting[BATCH].to_numpy())
                self._write_segment(waiting.slice(0, end))
                self._waiting, self._bytes = [waiting.slice(end)], waiting.slice(end).nbytes

    def _write_segment(self, segment: pa.Table) -> None:
        self._bounds.add(segment)
        for events in group_by_table(segment, _GROUPED_BYTES):
            for rows in _split(events, _ROW_GROUP_BYTES):
                self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)


def group_by_table(events: pa.Table, least_bytes: int) -> Iterator[pa.Table]:
    """Yield the events of each table that has many bytes, then those of all others together; each keeps their order."""
    codes = events[TABLE].combine_chunks().dictionary_encode().indices.to_numpy()
    if not codes.any():
        yield events
        return
    is_large = np.bincount(codes, _image_bytes(events[BEFORE]) + _image_bytes(events[AFTER])) >= least_bytes
    if not is_large.any():
        yield events
        return
    groups = np.where(is_large[codes], codes, len(is_large))
    grouped, end = events.take(pa.array(np.argsort(groups, kind="stable"))), 0
    for count in np.bincount(groups).tolist():
        if count:
            yield grouped.slice(end, count)
        end += count


def _image_bytes(column: pa.ChunkedArray) -> np.ndarray:
    """Return the bytes of values in each image of a column of maps."""
    found = [np.zeros(0)]
    for chunk in column.chunks:
        offsets, items = chunk.offsets.to_numpy(), chunk.items
        # Of a sliced array, the items are either sliced with it or whole, depending on Arrow's version.
        offsets = offsets - offsets[0] if len(items) == offsets[-1] - offsets[0] else offsets
        ends = np.concatenate([[0], np.cumsum(pc.fill_null(pc.binary_length(items), 0).to_numpy())])
        found.append(ends[offsets[1:]] - ends[offsets[:-1]])
    return np.concatenate(found)


def _last_change(values: np.ndarray) -> int:
    """Return where the last run of equal values begins; the number of values if all are equal."""
    changes = np.flatnonzero(values[1:] != values[:-1])
    return int(changes[-1]) + 1 if len(changes) else len(values)


def _split(events: pa.Table, size: int) -> Iterator[pa.Table]:
    """Yield events in parts of about so many bytes, as if all rows had as many."""
    count = max(1, size * events.num_rows // max(events.nbytes, 1))
    for start in range(0, events.num_rows, count):
        yield events.slice(start, count)


def sort_by_position(events: pa.RecordBatch) -> pa.RecordBatch:
    """Sort one batch by position; return a sorted batch unchanged, without a copy."""
    incarnation, lsn, seq = _numbers(events)
    increases = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (seq[1:] > seq[:-1]))
    if increases.all() and (incarnation == incarnation[:1]).all():
        return events
    return events.take(pa.array(np.lexsort((seq, lsn, incarnation))))


def merge_sorted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge sorted batches into ordered slices of them; a batch is cut, without a copy, where another's rows follow."""
    pending = [(_position(batch, 0), number, batch) for number, batch in enumerate(batches) if batch.num_rows]
    heapq.heapify(pending)
    while pending:
        _, number, batch = heapq.heappop(pending)
        if not pending:
            yield batch
            return
        following = pending[0][0]
        if _position(batch, batch.num_rows - 1) < following:
            yield batch
            continue
        cut = max(_count_rows_before(batch, following), 1)
        yield batch.slice(0, cut)
        if cut < batch.num_rows:
            rest = batch.slice(cut)
            heapq.heappush(pending, (_position(rest, 0), number, rest))


def _position(events: pa.RecordBatch, row: int) -> tuple[int, int, int]:
    incarnation, lsn, seq = (events.column(name)[row].as_py() for name in Position.COLUMNS)
    return incarnation, lsn, seq


def _count_rows_before(events: pa.RecordBatch, position: tuple[int, int, int]) -> int:
    incarnation, lsn, seq = _numbers(events)
    precedes_in_log = (lsn < position[1]) | ((lsn == position[1]) & (seq < position[2]))
    return int(np.count_nonzero((incarnation < position[0]) | ((incarnation == position[0]) & precedes_in_log)))


def _numbers(events: pa.RecordBatch) -> Sequence[np.ndarray]:
    return [events.column(name).to_numpy(zero_copy_only=False) for name in Position.COLUMNS]


class _Bounds:
    """The least and greatest values of the columns in PRUNED_BY, and their numbers of NULLs."""

    def __init__(self) -> None:
        self.rows = 0
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}
        self._nulls = dict.fromkeys(PRUNED_BY, 0)

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in PRUNED_BY:
            ends = pc.min_max(rows[name]).as_py()
            self._nulls[name] += rows[name].null_count
            if ends["min"] is not None:
                self._lowest[name] = min(ends["min"], self._lowest.get(name, ends["min"]))
                self._highest[name] = max(ends["max"], self._highest.get(name, ends["max"]))

    def as_json(self) -> str:
        """Return them as Delta's statistics. It has milliseconds, events microseconds: upper bounds are rounded up."""
        return json.dumps({
            "numRecords": self.rows,
            "minValues": {name: _as_json(value, timedelta(0)) for name, value in self._lowest.items()},
            "maxValues": {name: _as_json(value, timedelta(microseconds=999)) for name, value in self._highest.items()},
            "nullCount": self._nulls,
        })


def _as_json(value: object, margin: timedelta) -> object:
    """Return a value as Delta's statistics have it: a time with a margin, cut to milliseconds."""
    if isinstance(value, datetime):
        bound = value + margin
        return f"{bound.strftime('%Y-%m-%dT%H:%M:%S')}.{bound.microsecond // 1000:03d}Z"
    return value
