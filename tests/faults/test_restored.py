"""A server's storage is restored to an earlier state: same server by every number, and positions that come again.

Two lakes capture one database, so both write to its heartbeat row. Each is right about its own log.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from dblake.base.core.errors import ExitCode, LogWentBack
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import Backend, PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql import Flavour, MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.postgres import Database, note_postgres

pytestmark = pytest.mark.timeout(180)

T = "public.t"


class World:
    """A server with one table, its source, and the copy of its storage."""

    def __init__(self, server: EmbeddedPostgres | MysqlServer, backend: Backend, data: Path) -> None:
        self.backend, self._server, self._data = backend, server, data
        self._copy = data.with_name("snapshot")
        backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "varchar(40)"))))
        self.source = backend.source("public.*")

    def insert(self, first: int, rows: int, value: str) -> None:
        with self.backend.begin() as transaction:
            for key in range(first, first + rows):
                transaction.insert(T, {"id": str(key), "v": value})

    def snapshot(self) -> None:
        """Copy the storage while the server is stopped."""
        self._server.stop()
        copy(self._data, self._copy)
        self._server.start()

    def restore(self, *, keep: str = "") -> None:
        """Put the copy in the storage's place; files whose names begin with ``keep`` stay as they are."""
        self._server.stop()
        kept = [file for file in self._data.iterdir() if keep and file.name.startswith(keep)]
        for file in kept:
            copy(file, self._copy)
        shutil.rmtree(self._data)
        copy(self._copy, self._data)
        self._server.start()

    def state(self) -> dict[tuple[str | None, ...], dict[str, str | None]]:
        return {(row["id"],): row for row in self.backend.rows(T)}


def copy(path: Path, to: Path) -> None:
    """Copy a file or folder with the owners of its files."""
    subprocess.run(["cp", "-a", path, to], check=True)


@contextmanager
def postgres_world(data: Path, watermarks: Literal["table", "messages"]) -> Iterator[World]:
    with EmbeddedPostgres(data, settings={"fsync": "off"}) as server:
        note_postgres(server)
        yield World(server, PostgresBackend(Database(server, "postgres"), watermarks=watermarks), data)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Yield a server of the kind that the test names, PostgreSQL by default."""
    flavour: Flavour | Literal["postgres", "messages"] = getattr(request, "param", "postgres")
    data = tmp_path / "data"
    if flavour == "postgres":
        with postgres_world(data, "table") as world:
            yield world
    elif flavour == "messages":
        with postgres_world(data, "messages") as world:
            yield world
    else:
        with MysqlServer(flavour, data) as other:
            yield World(other, MysqlBackend(other), data)


def reject(lake: CaptureLake, source: Source) -> None:
    """Require that capture rejects the server and lands nothing."""
    before = lake.reached
    message = r"(the log went back, .*|the log was reset( or cut short)?), a gap"
    with pytest.raises(LogWentBack, match=message) as rejected:
        lake.capture(source)
    assert rejected.value.exit_code == ExitCode.CONFIGURATION
    assert lake.reached == before


@pytest.mark.parametrize(
    "world",
    ["postgres", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("messages", "mariadb", "mysql"))],
    indirect=True,
)
def test_restored_server_stays_rejected(world: World, tmp_path: Path) -> None:
    """The first start finds a log that ends too early; then the log grows, and the scheduler starts capture again."""
    lake = CaptureLake(tmp_path)
    world.insert(1, 100, "a")
    lake.dump(T)
    lake.capture(world.source)
    world.snapshot()
    world.insert(1001, 500, "lost")
    lake.capture(world.source)
    world.restore()
    reject(lake, world.source)
    world.insert(5001, 3000, "new")
    reject(lake, world.source)
    shutil.rmtree(lake.progress)
    reject(lake, world.source)
    reject(lake, world.source)
    lake.capture(world.source, accept_gap=True)
    lake.capture(world.source)
    assert lake.state(T) == world.state()
    assert len(lake.state(T)) == 3100


@pytest.mark.parametrize("world", ["postgres", "messages"], indirect=True)
def test_log_grown_past_position_is_rejected(world: World, tmp_path: Path) -> None:
    """No number shows that the log went back: it has all positions that landed, with other contents."""
    lake = CaptureLake(tmp_path)
    world.insert(1, 100, "a")
    lake.dump(T)
    lake.capture(world.source)
    world.snapshot()
    world.insert(1001, 50, "lost")
    lake.capture(world.source)
    world.restore()
    world.insert(5001, 3000, "new")
    reject(lake, world.source)
    lake.capture(world.source, accept_gap=True)
    assert lake.state(T) == world.state()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["postgres", "messages"], indirect=True)
def test_other_lakes_heartbeats_hide_nothing(world: World, tmp_path: Path) -> None:
    """A second lake that accepts the gap first writes heartbeats; the first lake is still rejected."""
    lake, other = CaptureLake(tmp_path / "a"), CaptureLake(tmp_path / "b")
    source, other_source = world.source, world.backend.other_slot()
    for each, its_source in ((lake, source), (other, other_source)) * 2:
        each.capture(its_source)
    world.snapshot()
    world.insert(1001, 50, "lost")
    for each, its_source in ((lake, source), (other, other_source)) * 2:
        each.capture(its_source)
    world.restore()
    world.insert(5001, 3000, "new")
    other.capture(other_source, accept_gap=True)
    reject(lake, source)
    lake.capture(source, accept_gap=True)
    for each, its_source in ((lake, source), (other, other_source)) * 2:
        each.capture(its_source)
        assert each.state(T) == world.state()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_data_restored_beside_kept_log_is_rejected(world: World, tmp_path: Path) -> None:
    """The binlog is on storage of its own, and only the data went back: the log lacks nothing, the tables do."""
    lake = CaptureLake(tmp_path)
    world.insert(1, 100, "a")
    lake.dump(T)
    lake.capture(world.source)
    world.snapshot()
    world.insert(1001, 50, "lost")
    lake.capture(world.source)
    world.restore(keep="binlog")
    reject(lake, world.source)
    lake.capture(world.source, accept_gap=True)
    assert lake.state(T) == world.state()
