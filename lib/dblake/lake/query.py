"""Query one Delta table with SQL in process, through delta-rs's DataFusion: what jobs ask of tables of the lake.

Guarantee: whatever a string contains, it cannot end its quotes. Users' own SQL is ``sql``'s.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dblake.lake.tables import find_table


def query_rows(path: str, statement: str) -> list[dict[str, Any]]:
    """Return the rows of a SELECT over one table, which the statement calls ``t``; none if there is no table."""
    table = find_table(path)
    rows: list[dict[str, Any]] = query_arrow(table, statement).to_pylist() if table else []
    return rows


def instant(moment: datetime) -> str:
    """Return a time, which has a zone, as SQL of ``query_rows``."""
    return f"to_timestamp_micros({int(moment.timestamp() * 1_000_000)})"


def quoted(text: str) -> str:
    """Return a string as SQL of ``query_rows``."""
    return "'" + text.replace("'", "''") + "'"


def query_arrow(table: DeltaTable, statement: str) -> pa.Table:
    """Return the result of a SELECT over one open table, which the statement calls ``t``."""
    # Not to_pyarrow_table: its reader threads may still run when the interpreter ends, which aborts the process.
    return pa.table(QueryBuilder().register("t", table).execute(statement).read_all())
