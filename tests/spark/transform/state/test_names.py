"""Tables and columns with names that resemble paths, SQL or options, from the database to SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from dblake.base.core.errors import UsageError
from dblake.base.core.names import split_qualified
from dblake.base.core.source import Source
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import maps_columns, open_table
from dblake.serve.iceberg.publisher import Publisher, published_name
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.query import query
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.files import FileReader, TableFiles
from dblake.transform.state.run import run_state
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.odd_names import (
    BEYOND,
    COLUMNS,
    TABLES,
    create_statements,
    double_quoted,
    insert_statements,
    wide_tables,
)
from tests.support.postgres import fresh_database
from tests.support.sql_rows import sql_rows

# Capture's tests cover all names; these are the ones that SQL, paths and views could misread.
_PICKED = {
    "public/orders", "public/~4frders", "~50ublic/orders", "~2e~2e/~2e~2e",
    "public/x~27~3b~20~44~52~4f~50~20~54~41~42~4c~45~20orders--", "public/back~5cslash~5c", "public/tick~60tock",
    "public/new~0aline~09~2e", "select/from", "public/~5fdelta_log", "public/~24~7benv~3a~48~4f~4d~45~7d",
}
ALL = (
    *(name for name in TABLES if name.folder in _PICKED or "~~" in name.folder or '"' in name.table), BEYOND,
)
WIDE = (*COLUMNS, BEYOND.table)


@pytest.fixture(scope="module")
def paths(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Paths]:
    """Row 1 is from a dump, row 2 from the log, row 3 (wide tables only) merged later; row 4 is in events only."""
    with fresh_database(request.getfixturevalue("postgres")) as database:
        backend, lake = PostgresBackend(database), CaptureLake(tmp_path_factory.mktemp("names"))
        database.run(
            *create_statements(ALL, WIDE, double_quoted, "text"),
            *insert_statements(ALL, WIDE, double_quoted, 1)
        )
        source = backend.source("*.*")
        lake.dump(*(name.qualified for name in ALL), *wide_tables(()))
        lake.capture(source)
        database.run(*insert_statements(ALL, WIDE, double_quoted, 2))
        capture_and_reconcile(spark, lake, source)
        fold(spark, lake.paths)
        database.run(*insert_statements((), WIDE, double_quoted, 3))
        capture_and_reconcile(spark, lake, source)
        fold(spark, lake.paths)
        database.run(*insert_statements(ALL, WIDE, double_quoted, 4))
        capture_and_reconcile(spark, lake, source)
        backend.close()
        yield lake.paths


def test_iceberg_tables_have_odd_columns(paths: Paths, tmp_path: Path) -> None:
    """Delta gives such columns other names in the files; a name mapping leads from them to Iceberg's."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/iceberg"}
    publisher = Publisher(paths, catalog, "shop")
    tables = publisher.publish_changed()
    assert any(maps_columns(open_table(paths.state(*split_qualified(table)))) for table in tables)
    for table in tables:
        rows = load_catalog("default", **catalog).load_table(f"shop.{published_name(table)}").scan().to_arrow()
        state = TableFiles(paths.state(*split_qualified(table)))
        expected = list[dict[str, object]]()
        for file in state.files():
            with FileReader(state.path, state.columns, file) as reader:
                expected += [row for group in range(reader.groups) for row in reader.read(group).to_pylist()]
        assert expected and [row.pop("_deleted") for row in expected] == [False] * len(expected)
        assert sorted(rows.to_pylist(), key=str) == sorted(expected, key=str), table


def capture_and_reconcile(spark: SparkSession, lake: CaptureLake, source: Source) -> None:
    lake.capture(source)
    reconcile_once(spark, lake.paths)


def fold(spark: SparkSession, paths: Paths) -> None:
    assert [(result.table, result.error) for result in run_state(spark, paths) if result.error] == []


def backquoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def test_every_table_has_its_folder_and_no_other_exists(paths: Paths) -> None:
    root = Path(paths.root)
    assert {p.name for p in root.iterdir()} <= {
        "landing", "schemas", "events", "windows", "frontier", "state", "checkpoints", "_commits",
    }
    tables = {str(log.parent.relative_to(root / "state")) for log in (root / "state").rglob("_delta_log")}
    assert tables == {name.folder for name in ALL} | {"public/wide", "public/parquet"}
    assert [p.name for p in root.parent.iterdir()] == ["shop"]
    assert sorted(p.name for p in root.parent.parent.iterdir()) == ["progress", "warehouse"]


def test_every_table_has_its_own_rows(spark: SparkSession, paths: Paths) -> None:
    found = {
        name: spark.read.format("delta").load(f"{paths.states}/{name.folder}").selectExpr("id", "v").collect()
        for name in ALL
    }
    assert {name: sorted(map(tuple, rows)) for name, rows in found.items()} == {
        name: [(1, f"{number} 1"), (2, f"{number} 2")] for number, name in enumerate(ALL)
    }


def test_spark_reads_every_table_or_rejects_ambiguous_name(spark: SparkSession, paths: Paths) -> None:
    selects = []
    for number, name in enumerate(ALL):
        schema, view = name.view or (name.schema, name.table)
        statement = f"SELECT {number} AS number, id, v FROM {backquoted(schema, view)}"
        if name.view:
            selects.append(statement)
            continue
        with pytest.raises(UsageError, match=r'ambiguous in Spark: .*public\.orders'):
            query(spark, paths, statement)
    rows = [tuple(row) for row in query(spark, paths, " UNION ALL ".join(selects)).collect()]
    assert sorted(rows) == [
        (number, key, f"{number} {key}") for number, name in enumerate(ALL) if name.view for key in (1, 2)
    ]


@pytest.mark.parametrize(
    "suffix", ["", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("_live", "_history"))]
)
def test_sql_reads_every_table_by_its_real_name(paths: Paths, suffix: str) -> None:
    engine = DuckdbEngine(paths)
    rows = {
        number: engine.prepare(
            f"SELECT id, v FROM {double_quoted(name.schema)}.{double_quoted(name.table + suffix)} ORDER BY id"
        ).to_arrow().to_pylist()
        for number, name in enumerate(ALL)
    }
    engine.close()
    assert rows == {
        number: [{"id": key, "v": f"{number} {key}"} for key in ((1, 2, 4) if suffix else (1, 2))]
        for number in range(len(ALL))
    }


def test_query_of_names_that_differ_in_case_alone_is_rejected(paths: Paths) -> None:
    """DuckDB knows one table of these names: it would read the second one twice."""
    message = "one query cannot read both public.Orders and public.orders, which differ in case alone"
    with pytest.raises(UsageError, match=message):
        sql_rows(paths, 'SELECT id FROM public."Orders" UNION ALL SELECT id FROM public.orders')


@pytest.mark.parametrize("suffix", ["_live", "_history"])
@pytest.mark.parametrize("table", wide_tables(()))
def test_every_column_has_its_own_values(paths: Paths, table: str, suffix: str) -> None:
    names = wide_tables(WIDE)[table]
    columns = ", ".join(map(double_quoted, ("id", *names)))
    assert [tuple(row.values()) for row in sql_rows(paths, f"SELECT {columns} FROM {table}{suffix} ORDER BY id")] == [
        (key, *(f"{number} {key}" for number in range(len(names)))) for key in (1, 2, 3, 4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("table", wide_tables(()))
def test_every_column_has_its_own_values_in_spark(spark: SparkSession, paths: Paths, table: str) -> None:
    names = wide_tables(WIDE)[table]
    columns = ", ".join(map(backquoted, ("id", *names)))
    rows = query(spark, paths, f"SELECT {columns} FROM {table} ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [
        (key, *(f"{number} {key}" for number in range(len(names)))) for key in (1, 2, 3)
    ]
