"""Tables and columns with unusual names are dumped and captured like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dblake.base.core.source import Source
from dblake.ingest.capture.table_life import LifeState, read_lives
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.odd_names import (
    BEYOND,
    COLUMNS,
    TABLES,
    OddName,
    create_statements,
    double_quoted,
    insert_statements,
    wide_tables,
)
from tests.support.postgres import Database

Run = Callable[..., None]


def backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def require_all(lake: CaptureLake, tables: tuple[OddName, ...], columns: tuple[str, ...]) -> None:
    """Assert a dumped and a logged row of every table, and no file outside the warehouse and progress."""
    decoded: dict[str, dict[str, dict[str, str | None]]] = {}
    for change in lake.decoded():
        assert change["op"] == {"1": "r", "2": "c"}[change["key"]["id"]]
        decoded.setdefault(change["table"], {})[change["key"]["id"]] = change["after"]
    expected: dict[str, dict[str, dict[str, str | None]]] = {
        name.qualified: {n: {"id": n, "v": f"{number} {n}"} for n in "12"} for number, name in enumerate(tables)
    }
    for table, names in wide_tables(columns).items():
        expected[table] = {
            n: {"id": n, **{name: f"{number} {n}" for number, name in enumerate(names)}} for n in "12"
        }
    assert decoded == expected
    assert {dump["state"] for dump in lake.dumps()} == {"done"}
    assert sorted(path.name for path in lake.progress.parent.iterdir()) == ["progress", "warehouse"]
    assert [path.name for path in Path(lake.paths.warehouse).iterdir()] == ["shop"]
    assert sorted(path.name for path in Path(lake.paths.root).iterdir()) == ["_commits", "landing"]


def dump_and_capture(
    lake: CaptureLake, source: Source, run: Run, tables: tuple[OddName, ...], insert: list[str]
) -> None:
    lake.dump(*(name.qualified for name in tables), *wide_tables(()))
    lake.capture(source)
    run(*insert)
    lake.capture(source)


def test_postgres_unusual_names_are_captured(database: Database, tmp_path: Path) -> None:
    lake, backend = CaptureLake(tmp_path), PostgresBackend(database)
    tables, columns = (*TABLES, BEYOND), (*COLUMNS, BEYOND.table)
    database.run(*create_statements(tables, columns, double_quoted, "text"))
    database.run(*insert_statements(tables, columns, double_quoted, 1))
    later = insert_statements(tables, columns, double_quoted, 2)
    dump_and_capture(lake, backend.source("*.*"), database.run, tables, later)
    backend.close()
    require_all(lake, tables, columns)


def test_mysql_unusual_names_are_captured(mysql_server: MysqlServer, tmp_path: Path) -> None:
    lake, backend = CaptureLake(tmp_path), MysqlBackend(mysql_server)
    mysql_server.run(*create_statements(TABLES, COLUMNS, backquoted, "varchar(20)"))
    mysql_server.run(*insert_statements(TABLES, COLUMNS, backquoted, 1))
    later = insert_statements(TABLES, COLUMNS, backquoted, 2)
    dump_and_capture(lake, backend.source("*.*"), mysql_server.run, TABLES, later)
    require_all(lake, TABLES, COLUMNS)


@pytest.mark.parametrize("column", [
    "_LSN", "V", *(pytest.param(name, marks=pytest.mark.slow) for name in ("_key", "_lossy", "_missing", "_unknown")),
])
def test_reserved_or_clashing_column_suspends_table(database: Database, tmp_path: Path, column: str) -> None:
    backend = PostgresBackend(database)
    database.run(f"CREATE TABLE t (id int PRIMARY KEY, v text, {double_quoted(column)} text)")
    source = backend.source("public.*")
    lake = CaptureLake(tmp_path)
    lake.capture(source)
    life = read_lives(lake.store)["public.t"]
    assert life.state is LifeState.SUSPENDED and life.reason.startswith("column_names: ")
    [check] = [check for check in source.preflight() if check.check == "column_names"]
    assert not check.ok and f"public.t.{column}" in check.detail
    backend.close()
