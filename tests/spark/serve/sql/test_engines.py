"""The two engines of ``sql`` answer one set of queries alike, over one warehouse."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.errors import StateError, UsageError
from dblake.base.lake.frontier import read_frontier
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.spark_engine import SparkEngine
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

TYPES = table_schema(
    "public.types", "id integer key", "small smallint", "big bigint", "real real", "double double precision",
    "flag boolean", "day date", "ts timestamp without time zone", "tz timestamp with time zone", "bytes bytea",
    "num numeric", "money numeric(10,2)", "wide numeric(38,0)", "words text", "tags text[]", "doc jsonb",
)
VALUES: list[dict[str, str | None]] = [
    {"id": "1", "small": "-32768", "big": "9223372036854775807", "real": "1.5", "double": "-2.25", "flag": "t",
     "day": "2024-02-29", "ts": "2024-01-31 12:34:56.789", "tz": "2024-01-31 12:34:56.000001+00",
     "bytes": "\\xdeadbeef", "num": "1051.05", "money": "10.50",
     "wide": "12345678901234567890123456789012345678", "words": "it's \"ünïcode\"\n",
     "tags": '{1,NULL,"a,b","the \\"x\\""}', "doc": '{"a": 1, "b": [0.10, null]}'},
    {"id": "2", **{column.name: None for column in TYPES.columns[1:]}},
    {"id": "3", "small": "0", "big": "-1", "real": "NaN", "double": "Infinity", "flag": "f", "day": "infinity",
     "ts": "0001-01-01 00:00:00", "tz": "infinity", "bytes": "\\x", "num": "NaN", "money": "-0.01", "wide": "0",
     "words": "", "tags": "{}", "doc": "null"},
    {"id": "4", "small": "7", "big": "8", "real": "0.1", "double": "1e-300", "flag": "t", "day": "9999-12-31",
     "ts": "9999-12-31 23:59:59.999999", "tz": "1900-01-01 00:00:00+00", "bytes": "\\x00",
     "num": "-0.000000000000000001", "money": "99999999.99", "wide": "-1", "words": "NULL", "tags": "[0:1]={x,y}",
     "doc": '"\\u00e9"'},
]
PARENT = table_schema("public.parent", "a integer key", "b text key", "v text")
ODD = table_schema('"My Shop"."Order lines"', "id integer key", "the name; with (odd) characters: text", "SELECT: text")
LOG = table_schema("public.log", "at timestamp with time zone", "line text")
OLD = table_schema("public.altered", "id integer key", "a text", "b integer")
NEW = table_schema("public.altered", "id integer key", "b bigint", "c text")
LATE = table_schema("public.late", "id integer key")
LONE = table_schema("other.lone", "v integer")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> PlainLake:
    """Return a lake whose state holds batch 1; batch 2 is in events only."""
    lake = PlainLake(tmp_path_factory.mktemp("lake"))
    for schema in (TYPES, PARENT, LOG, OLD, LONE):
        lake.schema(schema)
    lake.land(1, {
        TYPES: [(10 + n, "c", row["id"], row) for n, row in enumerate(VALUES)],
        PARENT: [(20, "c", ("1", "x"), {"a": "1", "b": "x", "v": "old"}),
                 (21, "c", ("1", "y"), {"a": "1", "b": "y", "v": "y"}),
                 (22, "c", ("2", "x"), {"a": "2", "b": "x", "v": "gone"}), (23, "d", ("2", "x"), None)],
        LOG: [(24, "c", (), {"at": "2024-01-01 00:00:00+00", "line": "one"})],
        OLD: [(25, "c", "1", {"id": "1", "a": "x", "b": "5"})],
        LONE: [(26, "c", (), {"v": "5"})],
    })
    lake.fold(1)
    lake.schema(NEW, lsn=30, batch=2)
    lake.schema(LATE, lsn=30, batch=2)
    lake.land(2, {
        TYPES: [(31, "d", "2", None), (32, "u", "3", {"words": "changed"}), (33, "r", "1", VALUES[0])],
        PARENT: [(34, "t", None, None), (35, "c", ("3", "z"), {"a": "3", "b": "z", "v": None})],
        LOG: [(36, "c", (), {"at": None, "line": "two"})],
        NEW: [(37, "u", "1", {"id": "1", "b": "6", "c": "new"})],
        LATE: [(38, "c", "1", {"id": "1"})],
    })
    return lake


QUERIES = [
    "SELECT * FROM public.types ORDER BY id",
    "SELECT count(*) AS n, min(big) AS s, max(wide) AS w, sum(money) AS m, min(ts) AS t, max(tz) AS z FROM types",
    "SELECT id, words FROM types WHERE tz < TIMESTAMP '2000-01-01 00:00:00' OR money = 10.5 ORDER BY id",
    "SELECT id FROM types WHERE day = DATE '2024-02-29' AND flag",
    "SELECT words, count(*) AS n FROM types GROUP BY words ORDER BY words NULLS LAST",
    "SELECT id, array_of(tags) AS tags FROM types ORDER BY id",
    "SELECT * FROM parent ORDER BY a, b",
    "SELECT * FROM log",
    "SELECT * FROM altered",
    "SELECT * FROM late",
    "SELECT v FROM lone",
    "SELECT p.a, t.words FROM parent p JOIN types t ON p.a = t.id ORDER BY p.b",
    "WITH x AS (SELECT id FROM public.types) SELECT count(*) AS n, (SELECT max(v) FROM other.lone) AS m FROM x",
    "SELECT * FROM dblake.events ORDER BY lsn",
    "SELECT batch, lsn, behind FROM dblake.frontier",
    "SELECT * FROM dblake.schemas ORDER BY lsn, schema_id",
    "SELECT count(*) AS n FROM dblake.windows",
]


def as_json(rows: Any) -> list[Any]:
    return [json.loads(row, parse_float=Decimal, parse_int=Decimal) for row in rows]


@pytest.fixture(scope="module")
def engines(spark: SparkSession, lake: PlainLake) -> tuple[DuckdbEngine, SparkEngine]:
    return DuckdbEngine(lake.paths), SparkEngine(lake.paths, spark=spark)


@pytest.mark.parametrize("statement", QUERIES)
def test_engines_answer_query_alike(engines: tuple[DuckdbEngine, SparkEngine], statement: str) -> None:
    ours, spark = (engine.query(statement) for engine in engines)
    assert ours.columns == spark.columns
    assert as_json(ours.json_rows()) == as_json(spark.json_rows())


def test_engines_show_values_as_equal_texts(engines: tuple[DuckdbEngine, SparkEngine]) -> None:
    statement = "SELECT id, big, flag, day, ts, tz, bytes, num, money, wide, words, tags FROM types ORDER BY id"
    first, *others = (tuple(row) for row in engines[0].query(statement).text_rows())
    assert first == (
        "1", "9223372036854775807", "true", "2024-02-29", "2024-01-31 12:34:56.789", "2024-01-31 12:34:56.000001+00",
        "\\xdeadbeef", "1051.05", "10.50", "12345678901234567890123456789012345678", VALUES[0]["words"],
        VALUES[0]["tags"],
    )
    assert [first, *others] == [tuple(row) for row in engines[1].query(statement).text_rows(10)]


def test_engines_answer_alike_at_point_of_state(spark: SparkSession, lake: PlainLake) -> None:
    position = read_frontier(lake.paths).position
    assert position is not None
    at = f"{position.incarnation}/{position.lsn}"
    ours, other = DuckdbEngine(lake.paths, at), SparkEngine(lake.paths, at, spark)
    for statement in ("SELECT * FROM types ORDER BY id", "SELECT * FROM parent_live ORDER BY a, b",
                      "SELECT count(*) AS n FROM dblake.events", "SELECT count(*) AS n FROM dblake.schemas"):
        assert as_json(ours.query(statement).json_rows()) == as_json(other.query(statement).json_rows()), statement


def test_engines_list_and_describe_tables_alike(engines: tuple[DuckdbEngine, SparkEngine]) -> None:
    ours, spark = engines
    assert list(ours.query("SHOW TABLES").text_rows()) == list(spark.query("show tables;").text_rows())
    for name in ("types", "public.parent", "log", "dblake.events"):
        found = [[(row[0], *row[2:]) for row in engine.query(f"DESCRIBE {name}").text_rows()] for engine in engines]
        assert found[0] == found[1], name
    assert [bool(list(engine.query("EXPLAIN SELECT * FROM types").text_rows())) for engine in engines] == [True, True]


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO log VALUES (NULL, 'x')", "DROP TABLE log", "SELEKT 1", "SELECT nope FROM log",
     "SELECT * FROM nowhere", "SELECT * FROM public.nowhere", "SELECT * FROM nowhere.log", "SET a = 1",
     "CREATE TABLE x AS SELECT 1", "DELETE FROM log"],
)
def test_engines_reject_what_is_no_query(engines: tuple[DuckdbEngine, SparkEngine], statement: str) -> None:
    for engine in engines:
        with pytest.raises(UsageError) as rejected:
            list(engine.query(statement).text_rows())
        assert "\n" not in str(rejected.value)


def test_engines_hide_values_of_failed_query(engines: tuple[DuckdbEngine, SparkEngine]) -> None:
    for engine in engines:
        with pytest.raises(UsageError) as failed:
            list(engine.query("SELECT CAST(line AS INT) FROM log").text_rows())
        assert "one" not in str(failed.value).replace("one of", "")


def test_spark_engine_spells_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    """The real name works in the default engine; Spark names the one that it accepts."""
    lake = PlainLake(tmp_path)
    lake.schema(ODD)
    with pytest.raises(UsageError, match=r"write My_Shop\.Order_lines"):
        SparkEngine(lake.paths, spark=spark).query("SELECT * FROM `My Shop`.`Order lines`")
    with pytest.raises(UsageError, match="one source at a time"):
        SparkEngine(lake.paths, spark=spark).query("SELECT * FROM shop.public.t")


@pytest.mark.parametrize("statement", ["SELECT * FROM types_live", "SELECT * FROM public.log_history"])
def test_spark_engine_rejects_view_that_folds_events(
    engines: tuple[DuckdbEngine, SparkEngine], statement: str
) -> None:
    with pytest.raises(UsageError, match=r"folds events, which the Spark engine does not\. Next: omit --engine spark"):
        engines[1].query(statement)


def test_spark_engine_rejects_point_between_versions_of_state(spark: SparkSession, lake: PlainLake) -> None:
    with pytest.raises(UsageError, match="is a version of state and newer events"):
        SparkEngine(lake.paths, "1/32", spark).query("SELECT * FROM types")


def test_documented_spark_snippet_skips_tombstones(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (Path(__file__).parents[4] / "docs" / "readers.md").read_text(encoding="utf-8")
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "spark" in s]
    lake = PlainLake(tmp_path / "warehouse")
    orders = table_schema("public.orders", "id integer key", "qty integer")
    lake.schema(orders)
    lake.land(1, {orders: [(1, "c", "1", {"id": "1", "qty": "10"}), (2, "d", "2", None)]})
    lake.fold(1)
    # Spark's working directory is fixed when its JVM starts.
    exec(snippet.replace("`warehouse", f"`{tmp_path}/warehouse"), {"spark": spark})  # noqa: S102
    assert capsys.readouterr().out == "1\n"


def test_history_with_reserved_column_is_rejected(engines: tuple[DuckdbEngine, SparkEngine], tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    lake.schema(table_schema("public.t", "id integer key", "_op text"))
    with pytest.raises(StateError, match="column of that name"):
        DuckdbEngine(lake.paths).query("SELECT * FROM t_history")
