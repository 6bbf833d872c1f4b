"""PostgreSQL for tests: one server per session, one database per test.

``postgres`` is the server, with logical replication enabled. ``database`` is an empty database in it, dropped after the
test together with its slots. A test that stops servers or changes their settings starts its own ``EmbeddedPostgres``.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support import debian
from tests.support.report import note_version

POSTGRES_BINARIES = "DBLAKE_TEST_POSTGRES_BINARIES"
"""The environment variable that names the folder of another version's programs for ``postgres``."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Database:
    """A test's own database. All access is as superuser."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self) -> Any:
        """Return an autocommit connection. The test closes it; otherwise dropping the database does."""
        return self.server.connect(self.name)

    def run(self, *statements: str) -> None:
        """Execute each statement in its own transaction."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, parameters)
                rows: list[tuple[Any, ...]] = cursor.fetchall()
                return rows
        finally:
            connection.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Return the session's server. It does not sync to disk, since no test survives a crash of the machine."""
    folder = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(folder / "data", settings={"fsync": "off", "max_connections": "200"})
    server.binaries = Path(os.environ.get(POSTGRES_BINARIES, server.binaries))
    with server:
        note_postgres(server)
        yield server


@pytest.fixture(scope="session")
def postgres15(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Return the session's server with Debian's binaries of PostgreSQL 15, which have ICU."""
    with debian_server(tmp_path_factory.mktemp("debian") / "data", None) as server:
        note_postgres(server)
        yield server


def debian_server(data: Path, plugins: str | None) -> EmbeddedPostgres:
    """Return a server with Debian's binaries, not started.

    ``plugins`` are the allowed output plugins, on versions that have the setting; None keeps the default.
    """
    binaries = debian.tree("postgresql") / "usr/lib/postgresql/15/bin"
    settings = subprocess.run([binaries / "postgres", "--describe-config"], capture_output=True, text=True,
                              check=True).stdout
    allowed = {"output_plugin_libraries": plugins} if plugins and "output_plugin_libraries" in settings else {}
    # The tree has no LLVM, which JIT needs.
    server = EmbeddedPostgres(data, settings={"fsync": "off", "max_connections": "200", "jit": "off", **allowed})
    server.binaries = binaries
    return server


def note_postgres(server: EmbeddedPostgres) -> None:
    """Add a running server to the versions in the summary."""
    with closing(server.connect()) as connection:
        number = connection.server_version
    note_version("PostgreSQL", f"{number // 10000}.{number % 10000}")


def end_sessions(admin: Database, condition: str, value: str) -> int:
    """End the sessions that a condition on pg_stat_activity selects; return how many, once all are gone."""
    pids = [pid for (pid,) in admin.rows(f"SELECT pid FROM pg_stat_activity WHERE {condition}", (value,))]
    admin.rows("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (pids,))
    # The function's own time-out exists from version 14 on.
    deadline, left = time.monotonic() + 5, "SELECT FROM pg_stat_activity WHERE pid = ANY(%s::int[])"
    while admin.rows(left, (pids,)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(pids)


@contextmanager
def fresh_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """Create an empty database; drop it and its slots after the block."""
    name, admin = f"test_{next(_numbers)}", Database(server, "postgres")
    admin.run(f"CREATE DATABASE {name}")
    yield Database(server, name)
    end_sessions(admin, "datname = %s", name)
    admin.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    admin.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Return a fresh database on the session's server."""
    with fresh_database(postgres) as database:
        yield database


@pytest.fixture
def postgres15_database(postgres15: EmbeddedPostgres) -> Iterator[Database]:
    """Return a fresh database on the server of version 15."""
    with fresh_database(postgres15) as database:
        yield database
