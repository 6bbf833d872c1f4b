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

from tests.support.backends import Backend, MemoryBackend, PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql_backend import mysql_backend
from tests.support.postgres import fresh_database

KINDS = ["memory", "postgres", "postgres15", "mariadb", "mysql"]
_PARITY_KINDS = {"postgres15", "mariadb", "mysql"}


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
    else:
        with mysql_backend(request.getfixturevalue(request.param)) as mysql:
            yield mysql


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield an empty database."""
    with empty_backend(request) as backend:
        yield backend


@pytest.fixture(params=["memory", "postgres", "postgres15"])
def keeping_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield an empty database of the kinds that retain their log for a reader: it has a slot."""
    with empty_backend(request) as backend:
        yield backend


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    """Return a warehouse of the test's own."""
    return CaptureLake(tmp_path)
