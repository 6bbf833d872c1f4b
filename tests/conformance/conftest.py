"""Each test of the suite runs once for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backends import Backend, MemoryBackend, PostgresBackend
from tests.support.lake import Lake


@pytest.fixture(params=["memory", "postgres"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty database."""
    if request.param == "memory":
        yield MemoryBackend()
        return
    postgres = PostgresBackend(request.getfixturevalue("database"))
    yield postgres
    postgres.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)
