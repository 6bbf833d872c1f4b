"""Column names that state tables and history views reserve; without Spark."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import StateError
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.checks import clashing_columns
from dblake.serve.sql.duckdb_history import history_sql
from dblake.transform.state.shape import RESERVED, shape_of


@pytest.mark.parametrize("column", sorted(RESERVED))
def test_reserved_column_is_rejected_by_preflight_and_state(column: str) -> None:
    table = TableSchema("public.t", (Column("id", "integer", False, 1), Column(column.upper(), "text")))
    assert clashing_columns(table) == [column.upper()]
    with pytest.raises(StateError, match=rf"table public\.t, column {column.upper()}: state tables have a column"):
        shape_of([table])


@pytest.mark.parametrize("column", ["_op", "_VALID_FROM", "_to"])
def test_reserved_history_column_is_rejected_by_name(column: str) -> None:
    shape = shape_of([TableSchema("public.t", (Column("id", "integer", False, 1), Column(column, "text")))])
    with pytest.raises(StateError, match=rf"table public\.t, column {column}: the history view has its own column"):
        history_sql(shape, "events")
