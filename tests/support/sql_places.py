"""Target databases of the SQL output for tests: the fixtures ``on_postgres``, ``on_mariadb`` and ``on_mysql``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dblake.serve.outputs.sql.output import SqlOutput
from tests.support.mysql import MysqlServer
from tests.support.postgres import Database
from tests.support.sql_delivery import SCHEMA, sql_output


@dataclass
class Place:
    """An empty target database: its URL, and how to query and change it."""

    url: str
    password: str
    run: Callable[..., None]
    rows: Callable[[str], list[tuple[Any, ...]]]
    flavour: str

    def output(self, **settings: Any) -> SqlOutput:
        """Return an output into the schema ``copy``."""
        return sql_output(self.url, self.password, **settings)

    def table(self, columns: str = "*", name: str = "orders") -> list[tuple[Any, ...]]:
        """Return the rows of a target's table by its first column."""
        return self.rows(f"SELECT {columns} FROM {SCHEMA}.{name} ORDER BY 1")


@pytest.fixture
def on_postgres(database: Database) -> Place:
    """Return a database of the session's PostgreSQL."""
    return postgres_place(database)


def postgres_place(database: Database) -> Place:
    """Return a database as a target."""
    url = f"postgresql://{database.server.user}@127.0.0.1:{database.server.port}/{database.name}"
    return Place(url, database.server.password, database.run, database.rows, "postgres")


@pytest.fixture
def on_mariadb(mariadb: MysqlServer) -> Iterator[Place]:
    """Return a database of the session's MariaDB."""
    yield from _on_mysql(mariadb)


@pytest.fixture
def on_mysql(mysql: MysqlServer) -> Iterator[Place]:
    """Return a database of the session's MySQL."""
    yield from _on_mysql(mysql)


def _on_mysql(server: MysqlServer) -> Iterator[Place]:
    server.empty()
    server.run("CREATE DATABASE app")
    yield Place(f"{server.flavour}://root@127.0.0.1:{server.port}/app", "", server.run, server.rows, server.flavour)
    server.empty()
