"""What a SQL user must not reach: files beside the sources' folders, settings, memory, and any way to write."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from dblake.base.core.errors import UsageError
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.lake import Lake
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

T = table_schema("public.t", "id integer key", "a text")
WRITES = (
    "COPY t TO '{out}'", "EXPLAIN ANALYZE COPY t TO '{out}'", "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{out}'",
    "/* */ EXPLAIN ANALYZE COPY t TO '{out}'", "-- c\nEXPLAIN ANALYZE COPY t TO '{out}'",
    "WITH x AS (COPY (SELECT 1) TO '{out}') SELECT * FROM x",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{out}') SELECT * FROM x",
    "SELECT (WITH x AS (COPY (SELECT 1) TO '{out}') SELECT 1)",
    "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    "EXPORT DATABASE '{out}'", "EXPLAIN ANALYZE EXPORT DATABASE '{out}'", "ATTACH '{out}' AS x",
    "EXPLAIN ANALYZE ATTACH '{out}' AS x", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true",
    "RESET enable_external_access", "PRAGMA enable_profiling", "CALL enable_logging()", "USE temp", "CHECKPOINT",
    "CREATE SECRET (TYPE s3)", "SELECT 1; COPY t TO '{out}'", "PREPARE p AS SELECT 1",
)
READS = (
    "SELECT * FROM read_text('{secret}')", "SELECT * FROM read_blob('{secret}')", "SELECT * FROM read_csv('{secret}')",
    "FROM '{secret}'", 'FROM "{secret}"', "WITH x AS (FROM read_text('{secret}')) FROM x", "FROM glob('{folder}/*')",
    "SELECT (SELECT content FROM read_text('{secret}'))", "SELECT * FROM system.main.read_text('{secret}')",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{secret}')", "SELECT * FROM READ_TEXT('{inside}/../../secret.csv')",
    "FROM '{inside}/../../secret.csv'", "FROM read_parquet('{inside}/state/*/*/*.parquet')", "DESCRIBE '{secret}'",
    "SUMMARIZE '{secret}'", "DESCRIBE SELECT * FROM '{secret}'", "FROM query('FROM read_text(''{secret}'')')",
    "FROM query_table('{secret}')", "FROM json_execute_serialized_sql(json_serialize_sql('FROM ''{secret}'''))",
    "FROM sniff_csv('{secret}')", "FROM duckdb_settings()", "FROM arrow_scan(0, 0, 0)", "FROM pandas_scan(0)",
    "FROM read_duckdb('{secret}')", "PIVOT (FROM read_text('{secret}')) ON size IN (1) USING count(*)",
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> PlainLake:
    folder = tmp_path_factory.mktemp("lake")
    (folder / "secret.csv").write_text("password\nhunter2\n")
    lake = PlainLake(folder / "warehouse")
    lake.schema(T)
    lake.land(1, {T: [(1, "c", "1", {"id": "1", "a": "x"})]})
    lake.fold(1)
    return lake


def places(lake: PlainLake) -> dict[str, str]:
    inside = Path(lake.paths.root)
    folder = inside.parent.parent
    return {"out": f"{inside}/stolen", "inside": str(inside), "folder": str(folder), "secret": f"{folder}/secret.csv"}


@pytest.mark.parametrize("statement", [*WRITES, *READS])
def test_statement_that_leaves_the_tables_is_rejected(lake: PlainLake, statement: str) -> None:
    """Also one that would write into the source's own folder, which the connection may open."""
    written = places(lake)
    for run in (lambda text: list(DuckdbEngine(lake.paths).query(text).text_rows()),
                lambda text: Lake(lake.paths).sql(text).to_arrow()):
        with pytest.raises(UsageError) as rejected:
            run(statement.format(**written))
        assert "hunter2" not in str(rejected.value)
    assert not os.path.exists(written["out"])


def test_connection_opens_the_files_of_sources_alone(lake: PlainLake) -> None:
    """The second wall, should a statement pass the first."""
    connection, written = DuckdbEngine(lake.paths)._connection, places(lake)
    files = connection.execute(f"SELECT file FROM glob('{written['inside']}/state/**/*.parquet')").fetchall()
    assert files
    for statement in ("FROM read_text('{secret}')", "FROM read_text('{inside}/../../secret.csv')",
                      "COPY (SELECT 1) TO '{folder}/stolen'", "ATTACH '{folder}/stolen' AS x",
                      "SET allowed_directories = ['/']", "SET enable_external_access = true"):
        with pytest.raises(duckdb.Error):
            connection.execute(statement.format(**written))
    assert sorted(os.listdir(written["folder"])) == ["secret.csv", "warehouse"]


@pytest.mark.parametrize("statement", [
    "EXPLAIN SELECT * FROM t", "EXPLAIN ANALYZE SELECT * FROM t", "-- why\nEXPLAIN (FORMAT JSON) SELECT * FROM t",
    "WITH x AS (SELECT 1 AS n UNION SELECT 2) SELECT * FROM x, range(3)", "SELECT unnest([1, 2])", "VALUES (1)",
    "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 5) FROM x", "SUMMARIZE t",
    "SELECT * FROM t, LATERAL (SELECT id + 1), generate_series(1, 3)", "PIVOT t ON a IN ('x') USING count(*)",
    "FROM information_schema.tables", "SELECT function_name FROM duckdb_functions()", "DESCRIBE SELECT 1",
    "SELECT * FROM json_each('[1]')",
])
def test_statement_that_reads_tables_passes(lake: PlainLake, statement: str) -> None:
    list(DuckdbEngine(lake.paths).query(statement).text_rows())
