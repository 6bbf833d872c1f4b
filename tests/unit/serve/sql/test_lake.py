"""``dblake.open``: tables and queries as Arrow, pandas, polars and DuckDB, as of state, a point or live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dblake
from dblake.base.core.errors import ConfigError, PointOutOfRange, UsageError
from dblake.base.core.position import Position
from dblake.serve.sql.lake import Lake
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

ORDERS = table_schema(
    "public.orders", "id integer key", "total numeric(10,2)", "at timestamp with time zone", "note text"
)
ODD = table_schema('"My Shop"."Order lines"', "id integer key")

CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: 127.0.0.1, database: shop, user: dblake, password: "${env:PATH}",
         tables: ["public.*"]}
"""


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of a lake whose state holds batch 1; batch 2 is in events only."""
    folder = tmp_path_factory.mktemp("lake")
    lake = PlainLake(folder / "warehouse")
    lake.schema(ORDERS)
    lake.schema(ODD)
    lake.land(1, {
        ORDERS: [(n, "c", str(n), {"id": str(n), "total": "1.50", "at": "2024-01-01 00:00:00+00", "note": None})
                 for n in (1, 2, 3)],
        ODD: [(4, "c", "1", {"id": "1"})],
    })
    lake.fold(1)
    lake.land(2, {ORDERS: [(11, "d", "1", None), (12, "u", "2", {"note": "new"})]})
    (folder / "conf.yaml").write_text(CONF)
    return folder / "conf.yaml"


@pytest.fixture(scope="module")
def lake(conf: Path) -> Lake:
    return dblake.open(conf)


def ids(rows: pa.Table) -> list[int]:
    found: list[int] = sorted(rows["id"].to_pylist())
    return found


def test_table_is_read_at_state_live_and_point(lake: Lake) -> None:
    assert ids(lake.table("public.orders").to_arrow()) == [1, 2, 3]
    assert ids(lake.live().table("public.orders").to_arrow()) == [2, 3]
    assert ids(lake.at("1/2").table("public.orders").to_arrow()) == [1, 2]
    assert ids(lake.at("2024-01-01T00:11:30").table("orders").to_arrow()) == [2, 3]
    assert (lake.position, lake.at("1/11").position) == (Position(1, 4), Position(1, 11))


def test_table_has_types_of_the_schema(lake: Lake) -> None:
    rows = lake.live().table("orders").to_arrow()
    assert rows.schema == pa.schema([
        ("id", pa.int32()), ("total", pa.decimal128(10, 2)), ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
    ])
    assert sorted(rows["note"].to_pylist(), key=str) == [None, "new"]


def test_table_is_given_in_every_form(lake: Lake) -> None:
    table = lake.table("orders")
    assert table.to_pandas()["id"].sum() == 6
    assert table.to_polars()["total"].sum() == pytest.approx(4.5)
    connection = duckdb.connect()
    assert table.to_duckdb(connection).filter("id > 1").aggregate("count(*)").fetchall() == [(2,)]
    live = lake.live().table("orders").to_duckdb(connection)
    assert live.filter("note = 'new'").fetchall()[0][0] == 2


def test_query_is_given_in_every_form(lake: Lake) -> None:
    query = lake.sql('SELECT o.id FROM orders o JOIN "My Shop"."Order lines" l USING (id)')
    assert query.to_arrow().to_pylist() == [{"id": 1}]
    assert query.to_pandas()["id"].tolist() == query.to_polars()["id"].to_list() == [1]
    assert query.to_duckdb(duckdb.connect()).fetchall() == [(1,)]
    assert lake.live().sql("SELECT count(*) AS n FROM orders").to_arrow().to_pylist() == [{"n": 2}]
    assert lake.at("1/2").sql("SELECT count(*) AS n FROM orders_live").to_arrow().to_pylist() == [{"n": 2}]


def test_lake_reads_one_position_while_state_moves(tmp_path: Path) -> None:
    written = PlainLake(tmp_path)
    written.schema(ODD)
    written.land(1, {ODD: [(1, "c", "1", {"id": "1"})]})
    written.fold(1)
    lake = Lake(written.paths)
    assert ids(lake.table('"My Shop"."Order lines"').to_arrow()) == [1]
    written.land(2, {ODD: [(2, "c", "2", {"id": "2"})]})
    written.fold(2)
    assert ids(lake.table('"My Shop"."Order lines"').to_arrow()) == [1]
    assert lake.sql('SELECT id FROM "My Shop"."Order lines"').to_arrow().num_rows == 1
    assert ids(Lake(written.paths).table("My_Shop.Order_lines").to_arrow()) == [1, 2]


@pytest.mark.parametrize("name", ["nope", "public.nope", "orders_live", "a.b.c.d", ""])
def test_unknown_table_is_rejected(lake: Lake, name: str) -> None:
    with pytest.raises(UsageError, match="there is no table"):
        lake.table(name)


def test_faulty_query_and_point_are_rejected(lake: Lake, conf: Path) -> None:
    with pytest.raises(UsageError, match="there is no table nope"):
        lake.sql("SELECT * FROM nope")
    with pytest.raises(UsageError, match="is no point"):
        lake.at("yesterday")
    with pytest.raises(PointOutOfRange):
        lake.at("1/0")
    with pytest.raises(ConfigError):
        dblake.open(conf.with_name("missing.yaml"))


def test_import_is_light_and_reading_needs_no_spark(conf: Path) -> None:
    script = f"""
import sys, dblake
assert not {{"deltalake", "duckdb", "pydantic", "pyarrow"}} & set(sys.modules)
lake = dblake.open({str(conf)!r})
assert lake.table("orders").to_arrow().num_rows == 3
assert "pyspark" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["polars", "pandas"])
def test_missing_package_names_extra(lake: Lake, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = {"polars": "polars", "pandas": "spark"}[package]
    for rows in (lake.table("public.orders"), lake.sql("SELECT 1 AS one")):
        with pytest.raises(ConfigError, match=rf"pip install 'dblake\[{extra}\]'"):
            getattr(rows, f"to_{package}")()


def test_failed_query_names_no_class(lake: Lake) -> None:
    for statement in ("SELECT CAST(note AS INTEGER) FROM (SELECT 'x' AS note)", "SELECT 127::TINYINT + 127::TINYINT"):
        with pytest.raises(UsageError, match="the query failed while running: a value ") as failed:
            lake.sql(statement).to_arrow()
        assert "Exception" not in str(failed.value)
