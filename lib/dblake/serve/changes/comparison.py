"""Join the rows of a table at two points by key, and select the rows that differ.

Place: below ``consolidate``, which obtains the rows of both ends. Guarantee: columns are compared under the later
schema, and a column that did not exist yet counts as NULL. DuckDB joins the rows as they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.serve.changes.differences import Differences, Way
from dblake.transform.state.moved import as_columns, row_schema
from dblake.transform.state.shape import Shape

_OWN = ("_key", "_incarnation", "_lsn", "_seq", "_lossy")


def compare_ends(
    table: str, shape: Shape, earlier: Shape | None, rows_before: Iterator[pa.Table], rows_after: Iterator[pa.Table],
    way: Way,
) -> Differences:
    """Return the rows that differ between both ends, joined by key."""
    old = _schema(earlier or shape)
    new = _schema(shape)
    old_names = [name for name in old.names if name not in _OWN]
    new_names = [name for name in new.names if name not in _OWN]
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("b", _reader(rows_before, old))
        connection.register("a", _reader(rows_after, new))
        columns = [f'b."{_quoted(name)}" AS b{n}' for n, name in enumerate(old_names)]
        columns += [f'a."{_quoted(name)}" AS a{n}' for n, name in enumerate(new_names)]
        differs = " OR ".join([_lossy_differs(), *(_differs(old, new, name) for name in new_names)])
        differing = connection.sql(
            f"SELECT CASE WHEN b._key IS NULL THEN '{Op.CREATE}' WHEN a._key IS NULL THEN '{Op.DELETE}' "
            f"ELSE '{Op.UPDATE}' END AS op, "
            f"coalesce(a._key, b._key) AS k, {', '.join(columns)} FROM b FULL OUTER JOIN a ON b._key = a._key "
            f"WHERE b._key IS NULL OR a._key IS NULL OR {differs} ORDER BY k"
        ).to_arrow_table()
    finally:
        connection.close()
    return Differences(
        table, shape.primary_key, differing["op"],
        _renamed(differing, "b", old_names, old), _renamed(differing, "a", new_names, new), way,
    )


def _reader(parts: Iterator[pa.Table], schema: pa.Schema) -> pa.RecordBatchReader:
    batches = (batch for part in parts for batch in as_columns(part, schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _schema(shape: Shape) -> pa.Schema:
    names = [*_OWN, *(column.name for column in shape.current)]
    schema = row_schema(shape)
    return pa.schema([schema.field(name) for name in names])


def _differs(old: pa.Schema, new: pa.Schema, name: str) -> str:
    column = f'"{_quoted(name)}"'
    if name not in old.names:
        return f"a.{column} IS NOT NULL"
    kinds = {old.field(name).type, new.field(name).type}
    if len(kinds) > 1 and any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in kinds):
        return f"CAST(a.{column} AS VARCHAR) IS DISTINCT FROM CAST(b.{column} AS VARCHAR)"
    return f"a.{column} IS DISTINCT FROM b.{column}"


def _lossy_differs() -> str:
    moved = " OR ".join(f"a._{name} <> b._{name}" for name in Position.COLUMNS)
    return f"(len(a._lossy) + len(b._lossy) > 0 AND ({moved}))"


def _renamed(differing: pa.Table, prefix: str, names: list[str], schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [differing[f"{prefix}{n}"].cast(schema.field(name).type) for n, name in enumerate(names)]
    return pa.table(columns, names=names)


def _quoted(name: str) -> str:
    return name.replace('"', '""')
