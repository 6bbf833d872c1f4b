"""PostgreSQL for tests: one server for the whole run, a database of its own for each test.

``postgres`` is the server, with logical replication on; ``database`` an empty database in it, gone after the test
together with the slots in it. A test that stops servers or changes their settings starts an ``EmbeddedPostgres`` of
its own.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support import debian
from tests.support.report import note_version

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Database:
    """A database a test has for itself. All as superuser."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self) -> Any:
        """A connection in autocommit; the test closes it or the database's end does."""
        return self.server.connect(self.name)

    def run(self, *statements: str) -> None:
        """Each statement in a transaction of its own."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, parameters)
                found: list[tuple[Any, ...]] = cursor.fetchall()
                return found
        finally:
            connection.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The run's server. Not synced to disk: a test never survives a crash of the machine."""
    folder = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(folder / "data", settings={"fsync": "off", "max_connections": "200"}) as server:
        note_postgres(server)
        yield server


@pytest.fixture(scope="session")
def wal2json_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Debian's server, for which there is wal2json."""
    with debian_server(tmp_path_factory.mktemp("debian") / "data", "pgoutput, wal2json") as server:
        note_postgres(server)
        yield server


def debian_server(data: Path, plugins: str | None) -> EmbeddedPostgres:
    """A server with Debian's binaries. ``plugins`` are the output plugins it allows, on versions that have the setting;
    None leaves the default."""
    binaries = debian.tree("postgresql") / "usr/lib/postgresql/15/bin"
    known = subprocess.run([binaries / "postgres", "--describe-config"], capture_output=True, text=True,
                           check=True).stdout
    allowed = {"output_plugin_libraries": plugins} if plugins and "output_plugin_libraries" in known else {}
    # Its tree lacks LLVM.
    server = EmbeddedPostgres(data, settings={"fsync": "off", "max_connections": "200", "jit": "off", **allowed})
    server.binaries = binaries
    return server


def note_postgres(server: EmbeddedPostgres) -> None:
    """Adds a started server to those that the summary lists."""
    with closing(server.connect()) as connection:
        number = connection.server_version
    note_version("PostgreSQL", f"{number // 10000}.{number % 10000}")


@contextmanager
def fresh_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database that goes again, with the slots in it."""
    name, whole = f"test_{next(_numbers)}", Database(server, "postgres")
    whole.run(f"CREATE DATABASE {name}")
    yield Database(server, name)
    whole.rows("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
    whole.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    whole.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database on the run's server."""
    with fresh_database(postgres) as database:
        yield database


@pytest.fixture
def wal2json_database(wal2json_server: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database on the server that has wal2json."""
    with fresh_database(wal2json_server) as database:
        yield database
