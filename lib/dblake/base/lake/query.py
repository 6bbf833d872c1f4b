"""Query one Delta table with SQL in process, through delta-rs's DataFusion: what jobs ask of tables of the lake.

Guarantee: whatever a string contains, it cannot end its quotes. Users' own SQL is ``sql``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dblake.base.lake.tables import find_table, maps_columns, table_bytes


def query_rows(path: str, statement: str) -> list[dict[str, Any]]:
    """Return the rows of a SELECT over one table, which the statement calls ``t``; none if there is no table."""
    return query_rows_of_each(path, [statement])[0]


def query_rows_of_each(path: str, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the rows of each SELECT, as ``query_rows``; the table is opened once."""
    table = find_table(path)
    return [query_arrow(table, statement).to_pylist() if table else [] for statement in statements]


def instant(moment: datetime) -> str:
    """Return a time, which has a zone, as SQL of ``query_rows``."""
    return f"to_timestamp_micros({int(moment.timestamp() * 1_000_000)})"


def quoted(text: str) -> str:
    """Return a string as SQL of ``query_rows``."""
    return "'" + text.replace("'", "''") + "'"


def read_little(table: DeltaTable, max_bytes: int) -> pa.Table | None:
    """Return the rows of an open table; None if its files are larger, map columns, or cannot be read here.

    Each column has one chunk, and no views of strings, which Spark does not take.
    """
    if maps_columns(table) or table_bytes(table) > max_bytes:
        return None
    try:
        rows = query_arrow(table, "SELECT * FROM t")
    except Exception:  # noqa: BLE001 - delta-rs raises no class of its own for a file that it cannot read
        return None
    rows = rows.cast(pa.schema(table.schema().to_arrow()))
    return pa.table([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def query_arrow(table: DeltaTable, statement: str) -> pa.Table:
    """Return the result of a SELECT over one open table, which the statement calls ``t``."""
    # Not to_pyarrow_table: its reader threads may still run when the interpreter ends, which aborts the process.
    return pa.table(QueryBuilder().register("t", table).execute(statement).read_all())
