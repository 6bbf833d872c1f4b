"""The jobs ``state`` and ``sql``: their output and exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from dblake.base.core.errors import StateError, UsageError
from jobs.sql import sql
from jobs.state import state
from tests.spark.transform.state.conftest import Lake, table_schema

T = table_schema("public.t", "id integer key", "n numeric(20,10)", "raw bytea", "seen timestamp with time zone",
                 "f double precision", "note text")
FULL = {"id": "1", "n": "1234567890.1234567890", "raw": "\\xff00", "seen": "2024-05-06 07:08:09.123456+00", "f": "NaN",
        "note": 'a "b", c'}
EMPTY = {"id": "2", "n": None, "raw": None, "seen": None, "f": None, "note": None}


@pytest.fixture(scope="module")
def conf(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    lake = Lake(spark, root)
    for schema in (T, table_schema("public.bad", "id integer key", "_key text")):
        lake.schema(schema)
    lake.land(T, 1, (10, "c", "1", FULL), (11, "c", "2", EMPTY))
    conf = root / "shop.yaml"
    conf.write_text(
        f"warehouse: {root}\nprogress: file:{root}/progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n  tables: [public.*]\n",
        encoding="utf-8",
    )
    done = CliRunner().invoke(state, ["--conf", str(conf)])
    assert (done.stdout, done.exit_code) == ("public.t: 2 events, up to batch 1\n", 0)
    return conf


def run_sql(conf: Path, *arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(sql, ["--conf", str(conf), "--engine", "spark", *arguments], input=typed)


def test_sql_json_has_all_digits(conf: Path) -> None:
    output = run_sql(conf, "SELECT * FROM t ORDER BY id", "--json").stdout
    assert '"n":1234567890.1234567890' in output
    assert json.loads(output) == [
        {"id": 1, "n": 1234567890.123456789, "raw": "\\xff00", "seen": "2024-05-06T07:08:09.123456Z", "f": "NaN",
         "note": 'a "b", c'},
        {"id": 2, "n": None, "raw": None, "seen": None, "f": None, "note": None},
    ]


def test_sql_json_without_rows_is_empty_array(conf: Path) -> None:
    assert json.loads(run_sql(conf, "SELECT * FROM t WHERE id = 9", "--json").stdout) == []


def test_sql_csv_quotes_values(conf: Path) -> None:
    assert run_sql(conf, "SELECT * FROM t ORDER BY id;", "--csv").stdout == (
        "id,n,raw,seen,f,note\n"
        '1,1234567890.1234567890,\\xff00,2024-05-06 07:08:09.123456+00,NaN,"a ""b"", c"\n'
        "2,,,,,\n"
    )


def test_sql_prints_table(conf: Path) -> None:
    output = run_sql(conf, "SELECT id, note AS what FROM t ORDER BY id").stdout
    assert [line.strip("│┃ ").split() for line in output.splitlines()][1:5:2] == [["id", "┃", "what"],
                                                                               ["1", "│", "a", '"b",', "c"]]
    assert "NULL" in output


def test_sql_prompt_continues_after_error(conf: Path) -> None:
    done = run_sql(conf, "--csv", typed="SELECT 1\nAS one;\nSELEKT;\nDROP TABLE t;\nSELECT 2 AS two")
    assert done.exit_code == 0
    assert done.stdout == "one\n1\ntwo\n2\n"
    assert [line.partition("]")[0] for line in done.stderr.splitlines()] == [
        "[PARSE_SYNTAX_ERROR", "DropTable is not a query, and sql only reads. Next: write a SELECT"
    ]


def test_failing_sql_shows_no_value(conf: Path) -> None:
    done = run_sql(conf, "SELECT CAST(note AS INT) FROM t")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "the query failed while running: CAST_INVALID_INPUT. Next: correct the query"


def test_state_job_fails_with_name_of_table_behind(conf: Path, spark: SparkSession) -> None:
    bad = table_schema("public.bad", "id integer key", "_key text")
    Lake(spark, conf.parent).land(bad, 2, (20, "c", "1", {"id": "1", "_key": "x"}))
    done = CliRunner().invoke(state, ["--conf", str(conf)])
    assert isinstance(done.exception, StateError) and "public.bad, column _key" in str(done.exception)
