"""PostgreSQL shuts down and restarts while capture follows it.

The slow tests stop the server again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.effort import EFFORT
from tests.support.lake import CaptureLake
from tests.support.postgres import Database, note_postgres

T = "public.t"
STOP_SECONDS = 5.0
STOPS = 6 * EFFORT


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "data", settings={"fsync": "off"}) as server:
        note_postgres(server)
        yield server


@pytest.fixture
def backend(server: EmbeddedPostgres) -> PostgresBackend:
    backend = PostgresBackend(Database(server, "postgres"))
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
    backend.run(f"INSERT INTO {T} SELECT n, 'a' FROM generate_series(1, 100) n")
    return backend


class Following:
    """Capture on a thread, until the end of the block."""

    def __init__(self, lake: CaptureLake, source: Source) -> None:
        self._lake, self._source, self._stop = lake, source, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._lake.capture(
                self._source, until=Until(), stop=self._stop, heartbeat_seconds=0.3, reconnect_seconds=60.0
            )
        except BaseException as error:  # noqa: BLE001 - raised by the block's end
            self.error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error


def wait_until_landed(lake: CaptureLake, rows: int) -> None:
    deadline = time.monotonic() + 30
    while not Path(lake.paths.landing).exists() or sum(r == "row" for r in lake.landing()["kind"].to_pylist()) < rows:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def stop_seconds(server: EmbeddedPostgres) -> float:
    began = time.monotonic()
    server.stop()
    return time.monotonic() - began


def write_uncaptured(backend: PostgresBackend) -> None:
    """Write log behind the last landed commit, which capture never confirms."""
    backend.run("CREATE TABLE IF NOT EXISTS hidden.u (n int)", "INSERT INTO hidden.u SELECT generate_series(1, 1000)")


def follow_through_restarts(backend: PostgresBackend, lake: CaptureLake, rounds: int) -> list[float]:
    """Stop and start the server; return how long each stop took. Fails if a row is lost."""
    server = backend.database.server
    backend.run("CREATE SCHEMA hidden")
    seconds = []
    with Following(lake, backend.source("public.*")):
        for number in range(1, rounds + 1):
            # With and without changes of captured tables just before.
            backend.run(f"INSERT INTO {T} VALUES ({1000 + number}, 'b')")
            wait_until_landed(lake, number)
            write_uncaptured(backend)
            seconds.append(stop_seconds(server))
            server.start()
    lake.capture(backend.source("public.*"))
    assert [event.op for event in lake.reconciled()[0] if event.table == T] == ["c"] * rounds
    return seconds


@pytest.mark.timeout(120)
def test_server_stops_at_once_under_idle_capture(backend: PostgresBackend, tmp_path: Path) -> None:
    assert max(follow_through_restarts(backend, CaptureLake(tmp_path), 2)) < STOP_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_stops_at_once_each_time(backend: PostgresBackend, tmp_path: Path) -> None:
    seconds = follow_through_restarts(backend, CaptureLake(tmp_path), STOPS)
    print(f"{len(seconds)} stops, {max(seconds):.2f} s at most")
    assert max(seconds) < STOP_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_stops_at_once_under_load(backend: PostgresBackend, tmp_path: Path) -> None:
    """Writers keep capture behind, and a dump reads beside it."""
    lake, source, server = CaptureLake(tmp_path), backend.source("public.*"), backend.database.server
    seconds, over = list[float](), threading.Event()

    def write() -> None:
        while not over.is_set():
            try:
                with closing(server.connect()) as connection, connection.cursor() as cursor:
                    while not over.is_set():
                        cursor.execute(f"UPDATE {T} SET v = md5(random()::text) WHERE id <= 100")
            except Exception:  # noqa: BLE001 - the server is down
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    with Following(lake, source):
        writer.start()
        for number in range(1, STOPS + 1):
            lake.dump(T)
            wait_until_landed(lake, 200 * number)
            seconds.append(stop_seconds(server))
            server.start()
        over.set()
        writer.join(30)
    lake.capture(source)
    print(f"{len(seconds)} stops, {max(seconds):.2f} s at most")
    assert max(seconds) < STOP_SECONDS
    assert sorted(lake.state(T).items()) == sorted(((row["id"],), row) for row in backend.rows(T))
