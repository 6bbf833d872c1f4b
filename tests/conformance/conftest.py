"""Each test of the suite runs once for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.backends import Backend, MemoryBackend, PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql_backend import mysql_backend
from tests.support.postgres import fresh_database

KINDS = ["memory", "postgres", "wal2json", "mariadb", "mysql"]


@contextmanager
def empty_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty database of the kind that the fixture was asked for."""
    if request.param == "memory":
        yield MemoryBackend()
    elif request.param == "postgres":
        with fresh_database(request.getfixturevalue("postgres")) as database:
            postgres = PostgresBackend(database)
            yield postgres
            postgres.close()
    elif request.param == "wal2json":
        with fresh_database(request.getfixturevalue("wal2json_server")) as database:
            postgres = PostgresBackend(database, "wal2json")
            yield postgres
            postgres.close()
    else:
        with mysql_backend(request.getfixturevalue(request.param)) as mysql:
            yield mysql


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty database."""
    with empty_backend(request) as backend:
        yield backend


@pytest.fixture
def keeping_backend(backend: Backend) -> Backend:
    """An empty database that keeps its log for a reader it knows; the others have nothing to show here."""
    if not backend.keeps_log_for_reader:
        pytest.skip("this server keeps its log by age alone and lets anybody read it")
    return backend


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)
