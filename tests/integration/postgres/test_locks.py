"""Locks that other sessions hold: the log goes on, and only what needs the lock waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dblake.base.core.errors import SourceError, TableUnreadable
from dblake.base.core.source import Source
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.postgres.connection import open_cursor
from dblake.ingest.source.postgres.driver_errors import table_errors
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

A, B = "public.a", "public.b"


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database)
    backend.run(
        f"CREATE TABLE {A} (id int PRIMARY KEY, v text)", f"INSERT INTO {A} VALUES (1, 'x')",
        f"CREATE TABLE {B} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.b1 PARTITION OF public.b FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.b2 PARTITION OF public.b FOR VALUES FROM (10) TO (20)",
        f"INSERT INTO {B} VALUES (1, 'x'), (11, 'y')",
    )
    yield backend
    backend.close()


@contextmanager
def held(database: Database, statement: str) -> Iterator[None]:
    """Hold the locks of a statement in an open transaction."""
    with closing(database.connect()) as connection:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute(statement)
            yield
        connection.rollback()


@contextmanager
def running(lake: CaptureLake, source: Source) -> Iterator[None]:
    """Run capture beside the block, and stop it; fails if it takes longer than seconds."""
    stop, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            lake.capture(source, until=Until(), stop=stop, heartbeat_seconds=0.2)
        except BaseException as error:  # noqa: BLE001 - raised by the block's end
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(8)
    assert not errors, errors
    assert not thread.is_alive(), "capture does not stop"


def wait_for_rows(lake: CaptureLake, table: str, rows: int) -> None:
    deadline = time.monotonic() + 15
    while len([event for event in lake.decoded() if event["table"] == table]) < rows:
        assert time.monotonic() < deadline, f"{rows} rows of {table} have not landed"
        time.sleep(0.1)


def test_capture_starts_and_lands_while_table_is_locked(
    backend: PostgresBackend, database: Database, lake: CaptureLake
) -> None:
    source = backend.source("public.*")
    lake.capture(source)
    with held(database, f"LOCK TABLE {A} IN ACCESS EXCLUSIVE MODE"), running(lake, source):
        backend.run(f"INSERT INTO {B} VALUES (2, 'z')")
        wait_for_rows(lake, B, 1)


def test_rows_of_partitioned_table_land_while_partition_is_locked(
    backend: PostgresBackend, database: Database, lake: CaptureLake
) -> None:
    """The first row of a table makes the log loop read its catalog entry, partitions included."""
    source = backend.source("public.*")
    lake.capture(source)
    with held(database, "LOCK TABLE public.b2 IN ACCESS EXCLUSIVE MODE"), running(lake, source):
        backend.run("INSERT INTO public.b1 VALUES (2, 'z')")
        wait_for_rows(lake, B, 1)


def test_locked_heartbeat_row_does_not_stop_log(
    backend: PostgresBackend, database: Database, lake: CaptureLake
) -> None:
    source = backend.source("public.*")
    lake.capture(source)
    with running(lake, source), held(database, "UPDATE dblake.watermark SET value = 'mine' WHERE id = 0"):
        time.sleep(0.5)
        backend.run(f"INSERT INTO {A} VALUES (2, 'z')")
        wait_for_rows(lake, A, 1)


def test_locked_table_is_dumped_after_others(
    backend: PostgresBackend, database: Database, lake: CaptureLake, caplog: pytest.LogCaptureFixture
) -> None:
    source = backend.source("public.*")
    lake.dump(A)
    lake.dump(B)
    with running(lake, source):
        with held(database, f"LOCK TABLE {A} IN ACCESS EXCLUSIVE MODE"):
            deadline = time.monotonic() + 20
            while {d["table"]: d["state"] for d in lake.dumps()}.get(B) != "done":
                assert time.monotonic() < deadline, lake.dumps()
                time.sleep(0.1)
            assert {d["table"]: d["state"] for d in lake.dumps()}[A] == "running"
            assert f"table {A}: another session holds a lock on it" in caplog.text
        deadline = time.monotonic() + 20
        while any(dump["state"] != "done" for dump in lake.dumps()):
            assert time.monotonic() < deadline, lake.dumps()
            time.sleep(0.1)
    assert len(lake.state(A)) == 1


def test_lock_beyond_time_out_is_named(backend: PostgresBackend, database: Database) -> None:
    """The next step helps: once the session has ended, the statement runs."""
    backend.source("public.*")
    assert backend.settings is not None
    query = "SELECT count(*) FROM dblake.watermark"
    message = "another session at the source holds a lock for longer than lock_timeout"
    with held(database, "LOCK TABLE dblake.watermark IN ACCESS EXCLUSIVE MODE"):
        with pytest.raises(SourceError, match=message) as caught, open_cursor(backend.settings, purpose="test") as cur:
            cur.execute(query)
        assert "end it, then run again" in caught.value.next_step
    with open_cursor(backend.settings, purpose="test") as cur:
        cur.execute(query)


def test_table_that_server_cannot_read_is_named(backend: PostgresBackend) -> None:
    backend.source("public.*")
    assert backend.settings is not None
    message = r"table public\.a: the server cannot read it \(SQLSTATE 22012\)"
    with pytest.raises(TableUnreadable, match=message), open_cursor(backend.settings, purpose="test") as cur, \
            table_errors(A):
        cur.execute("SELECT 1 / 0")
