"""The suite's databases. Each test runs once for every kind of source.

The short suite runs every test on the memory twin and PostgreSQL. On PostgreSQL 15, MariaDB and MySQL it runs the tests
marked ``parity`` (at least one per module) and the windows of ``test_windows``; their other tests are slow, because
they repeat rules of the generic engine. What is special to a server is tested in ``integration``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import Backend, MemoryBackend, PostgresBackend, StandbyBackend
from tests.support.lake import CaptureLake
from tests.support.mysql_backend import mysql_backend
from tests.support.postgres import fresh_database
from tests.support.standby import standby_of

KINDS = ["memory", "postgres", "postgres15", "messages", "standby", "mariadb", "mysql"]
_PARITY_KINDS = {"postgres15", "messages", "standby", "mariadb", "mysql"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of PostgreSQL 15, MariaDB and MySQL as slow unless they are marked ``parity``."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            kind = parameters.get("backend", parameters.get("keeping_backend", parameters.get("outcome")))
            if kind in _PARITY_KINDS and not item.get_closest_marker("parity"):
                item.add_marker(pytest.mark.slow)


@contextmanager
def empty_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield an empty database of the fixture's kind."""
    if request.param == "memory":
        yield MemoryBackend()
    elif request.param in ("postgres", "postgres15"):
        with fresh_database(request.getfixturevalue(request.param)) as database:
            postgres = PostgresBackend(database)
            yield postgres
            postgres.close()
    elif request.param == "messages":
        with fresh_database(request.getfixturevalue("postgres")) as database:
            messages = PostgresBackend(database, watermarks="messages")
            yield messages
            messages.close()
    elif request.param == "standby":
        pair: tuple[EmbeddedPostgres, EmbeddedPostgres] = request.getfixturevalue("replicated_postgres")
        with fresh_database(pair[0]) as database:
            standby = StandbyBackend(database, pair[1])
            yield standby
            standby.close()
    else:
        with mysql_backend(request.getfixturevalue(request.param)) as mysql:
            yield mysql


@pytest.fixture(scope="session")
def replicated_postgres(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Return a primary and its standby."""
    folder = tmp_path_factory.mktemp("replicated")
    settings = {"fsync": "off", "max_connections": "200"}
    with (
        EmbeddedPostgres(folder / "primary", settings=settings) as primary,
        standby_of(primary, folder / "standby", version=16, **settings) as standby,
    ):
        yield primary, standby


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield an empty database."""
    with empty_backend(request) as backend:
        yield backend


@pytest.fixture(params=["memory", "postgres", "postgres15", "messages", "standby"])
def keeping_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield an empty database of the kinds that retain their log for a reader: it has a slot."""
    with empty_backend(request) as backend:
        yield backend


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    """Return a warehouse of the test's own."""
    return CaptureLake(tmp_path)
