"""A state run over many tables: keys, types, schema changes, and the isolation of a table that fails."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.errors import StateError
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import read_frontier
from dblake.transform.state.rebuild import dumped_in
from dblake.transform.state.run import TableResult
from tests.spark.transform.state.conftest import Lake, table_schema
from tests.support.sql_rows import sql_rows

COMPOSITE = table_schema("public.composite", "a integer key", "b text key", "v text")
KEYLESS = table_schema("public.keyless", "v integer")
QUIET = table_schema("public.quiet", "id integer key")
ODD = table_schema('"My Shop"."Order lines"', "id integer key", "a b,c: text", "d`e text")
GROWS = [
    table_schema("public.grows", "id integer key", "a text"),
    table_schema("public.grows", "id integer key", "a text", "new one: numeric(4,1)"),
    table_schema("public.grows", "id integer key", "new one: numeric(4,1)"),
]
WIDENS = [table_schema("public.widens", "id integer key", "n integer"),
          table_schema("public.widens", "id bigint key", "n numeric(12,2)")]
NARROWS = [table_schema("public.narrows", "id integer key", "n bigint"),
           table_schema("public.narrows", "id integer key", "n integer")]
CHANGES = [table_schema("public.changes", "id integer key", "n integer"),
           table_schema("public.changes", "id integer key", "n text")]
REKEYED = [table_schema("public.rekeyed", "id integer key", "n integer"),
           table_schema("public.rekeyed", "id integer", "n integer key")]
TWINS = table_schema("public.twins", "id integer key", "a text", "A text")
OURS = table_schema("public.ours", "id integer key", "_lsn bigint")

# source type, text, value in state, lossy
VALUES: list[tuple[str, str, object, bool]] = [
    ("smallint", "-32768", -32768, False),
    ("bigint", "9223372036854775807", 9223372036854775807, False),
    ("integer", "2147483648", None, True),
    ("boolean", "t", True, False),
    ("boolean", "f", False, False),
    ("real", "1.5", 1.5, False),
    ("double precision", "Infinity", float("inf"), False),
    ("double precision", "-Infinity", float("-inf"), False),
    ("double precision", "1.7976931348623157e+308", 1.7976931348623157e308, False),
    ("numeric(10,2)", "-12345678.90", Decimal("-12345678.90"), False),
    ("numeric(10,2)", "NaN", None, True),
    ("numeric(38,0)", "9" * 38, Decimal("9" * 38), False),
    ("numeric(39,0)", "9" * 39, "9" * 39, False),
    ("numeric(3,-2)", "12300", Decimal(12300), False),
    ("numeric(2,5)", "0.00012", Decimal("0.00012"), False),
    ("numeric", "1.500000000000000000", Decimal("1.5"), False),
    ("numeric", "1.5000000000000000000000", Decimal("1.5"), False),
    ("numeric", "0.1234567890123456789", None, True),
    ("numeric", "123456789012345678901", None, True),
    ("numeric", "Infinity", None, True),
    ("date", "2024-02-29", date(2024, 2, 29), False),
    ("date", "infinity", None, True),
    ("date", "0044-03-15 BC", None, True),
    ("date", "12024-01-01", None, True),
    ("timestamp without time zone", "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999), False),
    ("timestamp(3) without time zone", "0001-01-01 00:00:00.5", datetime(1, 1, 1, 0, 0, 0, 500000), False),
    ("timestamp without time zone", "0044-03-15 00:00:00 BC", None, True),
    ("timestamp with time zone", "2024-01-01 12:34:56.789+00", datetime(2024, 1, 1, 12, 34, 56, 789000), False),
    ("timestamp with time zone", "10000-01-01 00:00:00+00", None, True),
    ("timestamp with time zone", "-infinity", None, True),
    ("bytea", "\\xdeadbeef", b"\xde\xad\xbe\xef", False),
    ("bytea", "\\x", b"", False),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", False),
    ("integer[]", "{1,NULL,3}", "{1,NULL,3}", False),
    ("text", "today", "today", False),
    ("date", "today", None, True),
    ("timestamp without time zone", "epoch", None, True),
]
TYPES = table_schema("public.types", "id integer key", "latin text", *(f"c{i} {v[0]}" for i, v in enumerate(VALUES)))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(spark, tmp_path_factory.mktemp("lake"))
    for schema in (COMPOSITE, KEYLESS, QUIET, ODD, TWINS, OURS, TYPES):
        lake.schema(schema)
    for version in (GROWS, WIDENS, NARROWS, CHANGES, REKEYED):
        lake.schema(version[0])
        lake.schema(version[1], lsn=20, batch=2)
    lake.schema(GROWS[2], lsn=30, batch=3)

    def first(schema: TableSchema, **values: str) -> tuple[TableSchema, int, list[tuple[object, ...]]]:
        return schema, 1, [(10, "c", values[schema.primary_key[0]], values)]

    def second(schema: TableSchema, **values: str) -> tuple[TableSchema, int, list[tuple[object, ...]]]:
        return schema, 2, [(22, "c", values[schema.primary_key[0]], values)]

    def land(*groups: tuple[TableSchema, int, list[tuple[object, ...]]]) -> None:
        lake.append([lake.frame(*group) for group in groups])

    texts = {"id": "1", "latin": "\\xe9", **{f"c{i}": v[1] for i, v in enumerate(VALUES)}}
    land(
        (COMPOSITE, 1, [(10, "c", ("1", 'x"'), {"a": "1", "b": 'x"', "v": "one"}),
                        (11, "c", ("1", ""), {"a": "1", "b": "", "v": "two"})]),
        (KEYLESS, 1, [(10, "c", (), {"v": "1"}), (11, "c", (), {"v": "1"}), (12, "u", (), {"v": "2"})]),
        first(QUIET, id="1"), first(TWINS, id="1", a="x", A="y"), first(OURS, id="1", _lsn="7"),
        (ODD, 1, [(10, "c", "1", {"id": "1", "a b,c": "x", "d`e": "y"})]),
        (TYPES, 1, [(10, "c", "1", texts, ["latin"])]),
        first(GROWS[0], id="1", a="x"), first(WIDENS[0], id="1", n="7"), first(NARROWS[0], id="1", n="9999999999"),
        first(CHANGES[0], id="1", n="7"), first(REKEYED[0], id="1", n="7"),
    )
    lake.fold()
    land(
        (COMPOSITE, 2, [(20, "u", ("1", ""), {"v": "three"})]),
        (KEYLESS, 2, [(20, "c", (), {"v": "3"})]),
        (GROWS[1], 2, [(21, "u", "1", {"id": "1", "a": "x", "new one": "1.5"})]),
        second(WIDENS[1], id="9999999999", n="7.25"), second(NARROWS[1], id="2", n="8"),
        second(CHANGES[1], id="2", n="x"), second(REKEYED[1], id="1", n="8"),
        (GROWS[2], 3, [(31, "u", "1", {"id": "1", "new one": "2.5"}), (32, "c", "2", {"id": "2", "new one": None})]),
    )
    lake.fold(batches_per_step=1)
    return lake


def rows(lake: Lake, table: str, *columns: str) -> list[tuple[object, ...]]:
    frame = lake.state(*table.split("."))
    return [tuple(r) for r in frame.orderBy("_incarnation", "_lsn", "_seq").selectExpr(*columns).collect()]


def errors(results: list[TableResult]) -> dict[str, str]:
    return {r.table: r.error.what for r in results if r.error}


def test_composite_keys_are_distinct_rows(lake: Lake) -> None:
    assert rows(lake, "public.composite", "_key", "a", "b", "v") == [
        ('["1","x\\""]', 1, 'x"', "one"), ('["1",""]', 1, "", "three")
    ]


def test_keyless_table_gets_appends_only(lake: Lake) -> None:
    assert rows(lake, "public.keyless", "v", "_key", "_lsn", "_deleted") == [
        (1, None, 10, False), (1, None, 11, False), (3, None, 20, False)
    ]


def test_table_without_new_events_is_not_written(lake: Lake) -> None:
    assert DeltaTable(lake.paths.state("public", "quiet")).version() == 1


def test_odd_table_and_column_names_are_folded(lake: Lake) -> None:
    state = lake.state("My Shop", "Order lines")
    assert [tuple(r) for r in state.select("id", "`a b,c`", "`d``e`").collect()] == [(1, "x", "y")]


def test_added_and_dropped_columns_are_followed(lake: Lake) -> None:
    assert rows(lake, "public.grows", "id", "a", "`new one`") == [(1, "x", Decimal("2.5")), (2, None, None)]


def test_wider_type_widens_state_column(lake: Lake) -> None:
    assert rows(lake, "public.widens", "id", "n") == [(1, Decimal("7.00")), (9999999999, Decimal("7.25"))]


def test_narrower_type_leaves_state_column(lake: Lake) -> None:
    assert rows(lake, "public.narrows", "id", "n") == [(1, 9999999999), (2, 8)]


def test_tables_with_unusable_columns_are_reported(lake: Lake) -> None:
    assert errors(lake.results[0]) == {
        "public.twins": "table public.twins, columns a and A: a Delta table cannot hold names that differ only in case",
        "public.ours": "table public.ours, column _lsn: state tables have a column of their own by that name",
    }


def test_incompatible_change_stops_its_table_only(lake: Lake) -> None:
    assert errors(lake.results[1]) == errors(lake.results[0]) | {
        "public.changes": "table public.changes, column n: its type became STRING, state has INT",
        "public.rekeyed": "table public.rekeyed: its primary key changed",
    }
    assert rows(lake, "public.changes", "id", "n") == [(1, 7)]
    assert isinstance(next(r.error for r in lake.results[1] if r.error), StateError)


@pytest.mark.parametrize(("number", "value"), list(enumerate(VALUES)), ids=[f"{v[0]} {v[1][:30]}" for v in VALUES])
def test_value_is_exact_or_listed_as_lossy(lake: Lake, number: int, value: tuple[str, str, object, bool]) -> None:
    kind, _, expected, lossy = value
    column = f"c{number}"
    # Spark converts a collected TIMESTAMP to the machine's time zone.
    read = f"CAST({column} AS TIMESTAMP_NTZ)" if kind == "timestamp with time zone" else column
    held, named = rows(lake, "public.types", read, f"array_contains(_lossy, '{column}')")[0]
    assert (bytes(held) if isinstance(held, bytearray) else held, named) == (expected, lossy)


def test_undecoded_text_is_hex_and_listed_as_lossy(lake: Lake) -> None:
    assert rows(lake, "public.types", "latin", "array_contains(_lossy, 'latin')") == [("\\xe9", True)]


def test_delta_rs_and_duckdb_read_state(lake: Lake) -> None:
    path = lake.paths.state("public", "types")
    row = DeltaTable(path).to_pyarrow_table(columns=["id", "c24"]).to_pylist()[0]
    assert row == {"id": 1, "c24": datetime(9999, 12, 31, 23, 59, 59, 999999)}
    files = DeltaTable(path).file_uris()
    relation = duckdb.sql(f"SELECT id, c24::VARCHAR FROM read_parquet({files})")
    assert relation is not None and relation.fetchall() == [(1, "9999-12-31 23:59:59.999999")]
    instant = DeltaTable(path).to_pyarrow_table(columns=["c27"]).to_pylist()[0]["c27"]
    assert instant == datetime(2024, 1, 1, 12, 34, 56, 789000, tzinfo=UTC)


def test_frontier_has_one_row_per_step(lake: Lake) -> None:
    steps = lake.spark.read.format("delta").load(lake.paths.frontier).orderBy("batch").collect()
    assert [(r["batch"], r["incarnation"], r["lsn"], r["seq"]) for r in steps] == [
        (1, 1, 12, 0), (2, 1, 22, 0), (3, 1, 32, 0)
    ]
    assert {t: steps[1]["versions"][t] for t in ("public.quiet", "public.composite")} == {
        "public.quiet": 1, "public.composite": 2
    }
    assert steps[2]["behind"] == {"public.twins": 0, "public.ours": 0, "public.changes": 1, "public.rekeyed": 1}
    assert "public.changes" not in steps[2]["versions"]


def test_run_without_new_events_writes_no_table(lake: Lake) -> None:
    before = read_frontier(lake.paths)
    results = lake.fold()
    assert {r.table for r in results} == {"public.twins", "public.ours", "public.changes", "public.rekeyed"}
    assert read_frontier(lake.paths).versions == before.versions


def test_table_behind_is_rebuilt_after_its_folder_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    number, text = CHANGES
    lake.schema(number)
    lake.land(number, 1, (10, "c", "1", {"id": "1", "n": "5"}), (11, "c", "2", {"id": "2", "n": "6"}))
    lake.land(number, 2, (20, "t", None, None), (21, "c", "3", {"id": "3", "n": "7"}))
    lake.fold()
    lake.schema(text, lsn=30, batch=3)
    lake.land(text, 3, (30, "c", "4", {"id": "4", "n": "x"}))
    assert [result.error is None for result in lake.fold()] == [False]
    position = read_frontier(lake.paths).position
    assert position is not None
    with pytest.raises(StateError, match=r"public\.changes"):
        sql_rows(lake.paths, "SELECT * FROM changes", f"{position.incarnation}/{position.lsn}")
    shutil.rmtree(lake.paths.state("public", "changes"))
    lake.fold()
    there = lake.state("public", "changes").where("NOT _deleted").collect()
    assert {row["_key"]: row["n"] for row in there} == {"3": "7", "4": "x"}


def test_dump_before_reverted_schema_change_is_not_used() -> None:
    number, _ = CHANGES

    def windows(high_lsn: int) -> list[dict[str, object]]:
        return [{"dump_id": "d", "schema_id": number.schema_id, "incarnation": 1, "high_lsn": high_lsn,
                 "began": {"incarnation": 1, "lsn": 5, "seq": 0}}]

    assert dumped_in(windows(10), [number], Position(1, 50)) is None
    assert dumped_in(windows(60), [number], Position(1, 50)) == Position(1, 5)


def test_table_keyless_for_a_time_is_not_folded_by_its_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path)
    keyed = table_schema("public.k", "id integer key", "n integer")
    keyless = table_schema("public.k", "id integer", "n integer")
    lake.schema(keyed)
    lake.land(keyed, 1, (10, "c", "1", {"id": "1", "n": "5"}))
    lake.fold()
    lake.schema(keyless, lsn=20, batch=2)
    lake.land(keyless, 2, (20, "c", None, {"id": "2", "n": "6"}))
    lake.schema(keyed, lsn=30, batch=3)
    lake.land(keyed, 3, (30, "c", "3", {"id": "3", "n": "7"}))
    (result,) = lake.fold()
    assert result.error is not None and "its primary key changed" in str(result.error)
    assert [row["_key"] for row in lake.state("public", "k").collect()] == ["1"]
