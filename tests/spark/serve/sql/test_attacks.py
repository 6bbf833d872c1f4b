"""What a SQL user must not reach with Spark's engine: programs, classes, files, settings, and any way to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.errors import UsageError
from dblake.serve.sql.spark_engine import SparkEngine
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

T = table_schema("public.t", "id integer key", "a text")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    (folder / "secret.csv").write_text("hunter2\n")
    return folder


@pytest.fixture(scope="module")
def engine(spark: SparkSession, folder: Path) -> SparkEngine:
    lake = PlainLake(folder / "warehouse")
    lake.schema(T)
    lake.land(1, {T: [(1, "c", "1", {"id": "1", "a": "x"})]})
    lake.fold(1)
    # A session of its own has functions of its own.
    return SparkEngine(lake.paths, spark=spark.newSession())


@pytest.mark.parametrize("statement", [
    "SELECT * FROM text.`{secret}`", "SELECT * FROM csv.`{secret}`", "TABLE binaryFile.`{secret}`",
    "SELECT * FROM delta.`{folder}/warehouse/shop/state/public/t`", "DESCRIBE text.`{secret}`",
    "SELECT * FROM IDENTIFIER('text.`{secret}`')", "WITH x AS (SELECT * FROM text.`{secret}`) SELECT * FROM x",
    "SELECT (SELECT max(value) FROM text.`{secret}`)", "SELECT * FROM t WHERE EXISTS (SELECT * FROM text.`{secret}`)",
    "EXPLAIN SELECT * FROM text.`{secret}`", "FROM text.`{secret}` |> SELECT *", "SELECT * FROM t VERSION AS OF 1",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')", "SELECT java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT try_reflect('java.lang.System', 'getenv', 'HOME')", "SELECT builtin.reflect('java.lang.Math', 'random')",
    "SELECT IDENTIFIER('reflect')('java.lang.Math', 'random')", "VALUES (reflect('java.lang.Math', 'random'))",
    "SELECT rank() OVER w FROM t WINDOW w AS (ORDER BY reflect('java.lang.Math', 'random'))",
    "SELECT from_xml('<r/>', 'a INT', map('rowValidationXSDPath', '{secret}'))",
    "SELECT * FROM table_changes_by_path('{folder}/warehouse/shop/state/public/t', 0)",
    "SELECT TRANSFORM(id) USING 'cat {secret}' AS (x STRING) FROM t",
    "INSERT OVERWRITE DIRECTORY '{out}' USING csv SELECT 1", "FROM t INSERT OVERWRITE DIRECTORY '{out}' SELECT *",
    "CREATE TABLE x USING csv LOCATION '{out}' AS SELECT 1", "EXPLAIN CREATE TABLE x AS SELECT 1", "CACHE TABLE t",
    "EXECUTE IMMEDIATE 'SELECT 1'", "BEGIN SELECT 1; END", "ADD JAR '{secret}'", "SET spark.x = 1", "LIST JARS",
])
def test_statement_that_leaves_the_views_is_rejected(engine: SparkEngine, folder: Path, statement: str) -> None:
    written = statement.format(secret=folder / "secret.csv", folder=folder, out=folder / "out")
    with pytest.raises(UsageError) as rejected:
        list(engine.query(written).text_rows())
    assert "hunter2" not in str(rejected.value)
    assert sorted(os.listdir(folder)) == ["secret.csv", "warehouse"]


@pytest.mark.parametrize("statement", [
    "WITH x AS (SELECT 1 AS n UNION SELECT 2) SELECT n, count(*) FROM x GROUP BY ROLLUP (n) HAVING count(*) > 0",
    "SELECT /*+ BROADCAST(t) */ * FROM t PIVOT (count(*) FOR a IN ('x')) ORDER BY 1 LIMIT 1 OFFSET 0",
    "SELECT *, rank() OVER w FROM t LATERAL VIEW explode(array(1)) v WINDOW w AS (ORDER BY a)",
    "SELECT * FROM t, LATERAL (SELECT t.id + 1)",
    "SELECT DISTINCT * FROM t TABLESAMPLE (100 PERCENT) EXCEPT SELECT 2, 'y' INTERSECT SELECT 2, 'y'",
    "SELECT * FROM range(3) r(n) JOIN (VALUES (1), (abs(-2))) AS v(n) USING (n) DISTRIBUTE BY n",
    "SELECT * FROM t UNPIVOT (v FOR c IN (a)) QUALIFY row_number() OVER (ORDER BY v) = 1 LIMIT ALL",
    "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 3) SELECT * FROM x CLUSTER BY n",
    "FROM t |> WHERE id = 1 |> AGGREGATE count(*) GROUP BY a", "EXPLAIN SELECT * FROM public.t", "TABLE t",
])
def test_statement_that_reads_views_passes(engine: SparkEngine, statement: str) -> None:
    list(engine.query(statement).text_rows())
