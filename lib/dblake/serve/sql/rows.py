"""SQL for DuckDB over a reading: the rows of its tables, and its events.

Place: between ``read`` and ``engine``. Guarantee: rows come from one version of the state table, and a newer change of
a key replaces that key's row. The rows therefore equal the source as of the reading's position.
"""

from __future__ import annotations

from dblake.base.core.position import Position
from dblake.serve.read.reading import EventsReading, TableReading
from dblake.serve.sql.duckdb_types import duckdb_type
from dblake.serve.sql.names import quoted
from dblake.serve.sql.scan import Connection, ScannedFiles, empty_rows, no_rows, state_rows, typed_rows
from dblake.transform.events.files import EVENT_COLUMNS


def table_rows_sql(connection: Connection, reading: TableReading, name: str) -> str:
    """Return a query for the rows of a table: the columns of its newest schema.

    Objects that the query needs are registered under names that begin with ``name``.
    """
    types = {column.name: column.type for column in reading.shape.current}
    columns = ", ".join(map(quoted, types))
    if reading.version is None:
        state = empty_rows({"_key": "STRING", "_deleted": "BOOLEAN", **types})
    else:
        files = ScannedFiles.read_state(reading.path, reading.version)
        state = state_rows(connection, files, {"_key": "STRING", "_deleted": "BOOLEAN", **types}, f"{name}_state")
    kept = f"SELECT {columns} FROM {state} s WHERE NOT _deleted"
    if reading.changes is None:
        return kept
    connection.register(f"{name}_changes", reading.changes)
    changes = quoted(f"{name}_changes")
    cast = ", ".join(f"CAST({quoted(n)} AS {duckdb_type(kind)}) AS {quoted(n)}" for n, kind in types.items())
    if reading.keys:
        kept += f" AND NOT EXISTS (SELECT 1 FROM {changes} c WHERE c._key = s._key)"
    return f"{kept} UNION ALL SELECT {cast} FROM {changes} WHERE NOT _deleted"


def events_sql(connection: Connection, reading: EventsReading | None, name: str, *, table: str | None = None) -> str:
    """Return a relation of a reading's events, optionally of one table's."""
    if reading is None:
        return no_rows(EVENT_COLUMNS)
    rows = no_rows(EVENT_COLUMNS)
    if reading.version is not None:
        rows = typed_rows(connection, ScannedFiles.read(reading.path, reading.version), EVENT_COLUMNS, f"{name}_files")
    rows = f"(SELECT * FROM {rows} WHERE {until_sql(reading.until)}"
    tail = ""
    if reading.tail is not None and reading.tail.num_rows:
        connection.register(f"{name}_tail", reading.tail)
        cast = ", ".join(quoted(field.name) for field in EVENT_COLUMNS)
        tail = f" UNION ALL SELECT {cast} FROM {quoted(f'{name}_tail')}"
    where = "" if table is None else f" WHERE \"table\" = {text(table)}"
    return f"(SELECT * FROM {rows}{tail}){where})"


def until_sql(until: Position, lsn: str = "lsn") -> str:
    """Return a condition for rows at or before a position."""
    # The first part alone reaches Parquet.
    return (
        f"(incarnation <= {until.incarnation} AND (incarnation, {lsn}, seq) <= "
        f"({until.incarnation}, {until.lsn}, {until.seq}))"
    )


def text(value: str) -> str:
    """Return a text as a string literal."""
    return "'" + value.replace("'", "''") + "'"
