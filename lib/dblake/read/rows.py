"""The rows of a table reading as Arrow tables: state's rows at their version, and changes over them.

Place: after ``reading``, for callers without a query engine. Guarantee: one part at a time is held in memory, a row
group of state or the changes; every live row is in exactly one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from dblake.read.fold import as_columns
from dblake.read.reading import TableReading
from dblake.state.files import Columns, FileReader, TableFiles
from dblake.state.upsert import match_keys


def read_rows(reading: TableReading) -> Iterator[pa.Table]:
    """Yield the live rows of a table, with ``reading.schema``'s columns, in no particular order."""
    schema = reading.schema
    for rows in read_keyed_rows(reading):
        yield rows.select(schema.names)


def read_keyed_rows(reading: TableReading) -> Iterator[pa.Table]:
    """Yield the live rows of a table with ``_key`` and ``reading.schema``'s columns."""
    schema = pa.schema([pa.field("_key", pa.string()), *reading.schema])
    changes = reading.changes
    if reading.version is not None:
        files = TableFiles(reading.path, DeltaTable(reading.path, version=reading.version))
        types = files.columns.types
        wanted = Columns({name: types[name] for name in ("_deleted", *schema.names) if name in types},
                         files.columns.physical)
        for file in files.files():
            with FileReader(reading.path, wanted, file) as reader:
                for group in range(reader.groups):
                    rows = _live(reader.read(group))
                    if changes is not None and reading.keys:
                        rows = rows.filter(pa.array(match_keys(rows["_key"], changes["_key"]) < 0))
                    yield as_columns(rows, schema)
    if changes is not None:
        yield as_columns(_live(changes), schema)


def _live(rows: pa.Table) -> pa.Table:
    deleted: np.ndarray = pc.fill_null(rows["_deleted"], False).to_numpy()
    return rows.filter(pa.array(~deleted.astype(bool))) if rows.num_rows else rows
