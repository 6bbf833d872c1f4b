"""Queries over a lake on S3, without an extension of DuckDB."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import UsageError
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.lake import Lake
from tests.support.plain_lake import PlainLake
from tests.support.s3 import S3Server, location
from tests.support.schemas import table_schema

ORDERS = table_schema("public.orders", "id integer key", "total numeric(10,2)", "note text")


def test_lake_on_s3_is_queried_in_process(s3: S3Server) -> None:
    lake = PlainLake(location(s3))
    lake.schema(ORDERS)
    lake.land(1, {ORDERS: [(n, "c", str(n), {"id": str(n), "total": "1.50", "note": None}) for n in (1, 2, 3)]})
    lake.fold(1)
    lake.land(2, {ORDERS: [(11, "d", "1", None), (12, "u", "2", {"note": "new"})]})
    engine = DuckdbEngine(lake.paths)
    for statement, expected in (
        ("SELECT id, total FROM orders WHERE id > 2", [("3", "1.50")]),
        ("SELECT id, note FROM orders_live ORDER BY id", [("2", "new"), ("3", None)]),
        ("SELECT count(*) FROM dblake.events", [("5",)]),
        ("SELECT count(*) FROM shop.public.orders_history", [("4",)]),
    ):
        assert [tuple(row) for row in engine.query(statement).text_rows()] == expected, statement
    assert Lake(lake.paths).live().table("orders").to_arrow().num_rows == 2
    for attack in ("FROM read_text('/etc/hostname')", f"FROM read_parquet('{lake.paths.root}/state/*/*/*.parquet')",
                   f"WITH x AS (COPY (SELECT 1) TO '{lake.paths.root}/stolen') FROM x"):
        with pytest.raises(UsageError):
            engine.query(attack)
