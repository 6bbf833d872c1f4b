"""The rows of a table reading as Arrow tables: state's rows at their version, and changes over them.

Place: after ``reading``, for callers without a query engine. Guarantee: one part at a time is held in memory, a row
group of state or the changes; every live row is in exactly one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.lake.tables import open_table
from dblake.serve.read.reading import TableReading
from dblake.transform.state.files import Columns, FileReader, OrderedValues, TableFiles, may_hold
from dblake.transform.state.moved import as_columns, row_schema
from dblake.transform.state.upsert import match_keys

_KEY = pa.field("_key", pa.string())


def read_rows(reading: TableReading) -> Iterator[pa.Table]:
    """Yield the live rows of a table, with ``reading.schema``'s columns, in no particular order."""
    names = reading.schema.names
    for rows in _read(reading, pa.schema([_KEY, *reading.schema]), None):
        yield rows.select(names)


def read_state_rows(reading: TableReading, keys: pa.Array | None = None) -> Iterator[pa.Table]:
    """Yield the live rows of a table, or of some ``_key`` values, with all columns that state has."""
    return _read(reading, row_schema(reading.shape), keys)


def _read(reading: TableReading, schema: pa.Schema, keys: pa.Array | None) -> Iterator[pa.Table]:
    changes = reading.changes
    if reading.version is not None:
        files = TableFiles(reading.path, open_table(reading.path, reading.version))
        types = files.columns.types
        wanted = Columns({name: types[name] for name in dict.fromkeys(["_deleted", *schema.names]) if name in types},
                         files.columns.physical)
        ordered = OrderedValues(pa.chunked_array([keys])) if keys is not None else None
        for file in files.files():
            if ordered is not None and not may_hold(file, "_key", ordered):
                continue
            with FileReader(reading.path, wanted, file) as reader:
                for group in range(reader.groups):
                    for rows in _read_group(reader, group, keys):
                        if changes is not None and reading.keys:
                            rows = rows.filter(pa.array(match_keys(rows["_key"], changes["_key"]) < 0))  # noqa: PLW2901
                        yield as_columns(rows, schema)
    if changes is not None:
        yield as_columns(_with_keys(_live(changes), keys), schema)


def _read_group(reader: FileReader, group: int, keys: pa.Array | None) -> Iterator[pa.Table]:
    if keys is None:
        yield from map(_live, reader.slices(group))
        return
    head = reader.read(group, ("_key",))
    # Most row groups have none of a few keys.
    if pc.any(pc.is_in(head["_key"], keys)).as_py():
        for rows in reader.slices(group, known=head):
            yield _live(_with_keys(rows, keys))


def _with_keys(rows: pa.Table, keys: pa.Array | None) -> pa.Table:
    return rows if keys is None else rows.filter(pc.is_in(rows["_key"], keys))


def _live(rows: pa.Table) -> pa.Table:
    deleted: np.ndarray = pc.fill_null(rows["_deleted"], False).to_numpy()
    return rows.filter(pa.array(~deleted.astype(bool))) if rows.num_rows else rows
