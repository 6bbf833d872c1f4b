"""Write ordered event files, and describe them for the events table's Delta log.

Place: end of a reconcile task. Guarantee: the events of a file are ordered by position, and its statistics bound every
value, so readers skip files by position, table, commit time, batch and transaction. A file becomes visible only with
the Delta commit that names it: the description (path, size, statistics) passes from the process that wrote the file to
the one that commits, which is left to ``reconcile.reconciler``.
"""

from __future__ import annotations

import heapq
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.decode.columns import AFTER, BEFORE, DECODED, KEY, OP, PARTIAL, UNDECODED
from dblake.lake.files import filesystem
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

ORIGIN = "origin"

#: The columns of the events table, as Arrow types; ``events.schema.EVENTS`` has the same as Spark types.
EVENT_COLUMNS = pa.schema(
    [
        *(DECODED.field(name) for name in (
            INCARNATION, LSN, SEQ, TABLE, OP, KEY, BEFORE, AFTER, SCHEMA_ID, TXID, COMMITTED_AT, LAST_IN_TXN,
        )),
        pa.field(ORIGIN, pa.string()),
        *(DECODED.field(name) for name in (CHUNK_ID, BATCH, PARTIAL, UNDECODED)),
    ]
)
#: The columns whose statistics the table's Delta log holds.
PRUNED_BY = (INCARNATION, LSN, TABLE, COMMITTED_AT, BATCH, TXID)

_POSITION = (INCARNATION, LSN, SEQ)
_ROW_GROUP_ROWS = 1 << 17
# Not the values of images: they rarely repeat in a page, so the writer would abandon each dictionary half-way.
_DICTIONARIES = [
    TABLE, OP, SCHEMA_ID, ORIGIN, CHUNK_ID, "key.key_value.key", "before.key_value.key", "after.key_value.key",
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
    """Write batches of EVENT_COLUMNS, each sorted by position, as one file ordered by position; return the file.

    ``table`` is the table's folder or URL.
    """
    rows = pa.Table.from_batches(merge_sorted(batches), EVENT_COLUMNS)
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    files, folder = filesystem(table)
    path = f"{folder.rstrip('/')}/{name}"
    with pq.ParquetWriter(
        path, EVENT_COLUMNS, filesystem=files, compression="zstd", compression_level=1, use_dictionary=_DICTIONARIES,
        write_statistics=[*PRUNED_BY, SEQ],
    ) as writer:
        writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
    return EventFile(name, files.get_file_info(path).size, rows.num_rows, _statistics(rows))


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
    incarnation, lsn, seq = (events.column(name)[row].as_py() for name in _POSITION)
    return incarnation, lsn, seq


def _count_rows_before(events: pa.RecordBatch, position: tuple[int, int, int]) -> int:
    incarnation, lsn, seq = _numbers(events)
    precedes_in_log = (lsn < position[1]) | ((lsn == position[1]) & (seq < position[2]))
    return int(np.count_nonzero((incarnation < position[0]) | ((incarnation == position[0]) & precedes_in_log)))


def _numbers(events: pa.RecordBatch) -> Sequence[np.ndarray]:
    return [events.column(name).to_numpy(zero_copy_only=False) for name in _POSITION]


def _statistics(rows: pa.Table) -> str:
    lowest, highest, nulls = {}, {}, {}
    for name in PRUNED_BY:
        ends = pc.min_max(rows[name]).as_py()
        nulls[name] = rows[name].null_count
        if ends["min"] is not None:
            lowest[name] = _as_json(ends["min"], timedelta(0))
            # Delta's statistics have milliseconds, events microseconds: round the upper bound up.
            highest[name] = _as_json(ends["max"], timedelta(microseconds=999))
    return json.dumps({"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def _as_json(value: object, margin: timedelta) -> object:
    """Return a value as Delta's statistics have it: a time with a margin, cut to milliseconds."""
    if isinstance(value, datetime):
        bound = value + margin
        return f"{bound.strftime('%Y-%m-%dT%H:%M:%S')}.{bound.microsecond // 1000:03d}Z"
    return value
