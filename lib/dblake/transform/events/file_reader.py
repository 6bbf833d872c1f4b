"""One file of events: opened through the lake's file system, its row groups' statistics, and its rows in plain types.

Place: below ``reader``, which decides what it needs of a file. Guarantee: rows have the types of EVENT_COLUMNS,
whichever engine wrote the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dblake.base.core.arrays import take_rows
from dblake.base.core.position import Position
from dblake.base.lake.files import file_path, filesystem
from dblake.transform.events.files import EVENT_COLUMNS

_REPEATED = ["table", "op", "schema_id", "origin", "chunk_id"]


@contextmanager
def open_event_file(table: str, path: str, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Open a file of the events table at ``table``; ``footer`` is its metadata if it has been read before."""
    system, base = filesystem(table)
    with system.open_input_file(file_path(base, path)) as source:
        yield pq.ParquetFile(
            source, metadata=footer, read_dictionary=_REPEATED, coerce_int96_timestamp_unit="us", pre_buffer=False,
        )


def as_plain_columns(events: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Select columns of events from any file, with their types in EVENT_COLUMNS; those that a file lacks are NULL."""
    schema = pa.schema([EVENT_COLUMNS.field(name) for name in columns])
    there = set(events.column_names)
    arrays = [
        pa.chunked_array([pa.nulls(events.num_rows, one.type)]) if one.name not in there
        else events[one.name] if events[one.name].type == one.type else events[one.name].cast(one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def order_by_position(events: pa.Table) -> np.ndarray:
    """Return the row numbers of events in order of position."""
    incarnation, lsn, seq = (events[name].to_numpy() for name in Position.COLUMNS)
    return np.lexsort((seq, lsn, incarnation))


def concat_by_position(parts: Sequence[pa.Table]) -> pa.Table:
    """Return events with EVENT_COLUMNS in order of position, without a copy if their order is that already."""
    if not parts:
        return EVENT_COLUMNS.empty_table()
    rows = pa.concat_tables(parts)
    order = order_by_position(rows)
    return rows if (order[1:] > order[:-1]).all() else take_rows(rows, order)
