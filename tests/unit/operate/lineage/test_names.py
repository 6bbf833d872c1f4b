"""Names of datasets by OpenLineage's conventions."""

from __future__ import annotations

from typing import Any

import pytest

from dblake.operate.lineage.names import name_path, name_source_table, name_target


@pytest.mark.parametrize(
    ("kind", "port", "database", "table", "expected"),
    [
        ("postgres", 5432, "shop", "public.orders", ("postgres://db:5432", "shop.public.orders")),
        ("postgres", 5432, "shop", 'public."Odd.Name"', ("postgres://db:5432", "shop.public.Odd.Name")),
        ("mysql", 3306, None, "shop.orders", ("mysql://db:3306", "shop.orders")),
        ("mariadb", 3307, None, "shop.orders", ("mysql://db:3307", "shop.orders")),
    ],
)
def test_name_of_source_table_by_database(
    kind: str, port: int, database: str | None, table: str, expected: tuple[str, str]
) -> None:
    assert name_source_table(kind, "db", port, database, table) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/lake/shop/landing", ("file", "/lake/shop/landing")),
        ("s3://bucket/lake/shop/landing", ("s3://bucket", "lake/shop/landing")),
        ("gs://bucket/lake", ("gs://bucket", "lake")),
        ("abfss://box@account.dfs.core.windows.net/lake", ("abfss://box@account.dfs.core.windows.net", "lake")),
        ("hdfs://node:9000/lake", ("hdfs://node:9000", "/lake")),
    ],
)
def test_name_of_path_by_store(path: str, expected: tuple[str, str]) -> None:
    assert name_path(path) == expected


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("kafka", {"brokers": "k1:9093,k2:9093", "topic": "{source}.{table}"},
         ("kafka://k1:9093", "shop.public.orders")),
        ("kafka", {"brokers": "k1", "topic": "all"}, ("kafka://k1:9092", "all")),
        ("jsonl", {"path": "/out/{table}.jsonl"}, ("file", "/out/public.orders.jsonl")),
        ("http", {"url": "https://user:secret@hook.example/events?key=secret"}, ("https://hook.example", "/events")),
        ("sql", {"url": "postgresql://me@db/wh", "schema": None, "table": "{schema}_{table}"},
         ("postgres://db:5432", "wh.public.public_orders")),
        ("sql", {"url": "postgresql://me@db:5433/wh", "schema": "s", "table": "{table}"},
         ("postgres://db:5433", "wh.s.orders")),
        ("sql", {"url": "mariadb://me@db/wh", "schema": None, "table": "{table}"}, ("mysql://db:3306", "wh.orders")),
        ("package.module:Class", {"any": 1}, ("dblake", "shop.bus")),
    ],
)
def test_name_of_target_by_output(kind: str, settings: dict[str, Any], expected: tuple[str, str]) -> None:
    """User, password and query of an address are no part of a name."""
    assert name_target(kind, settings, "shop", "bus", "public.orders") == expected
