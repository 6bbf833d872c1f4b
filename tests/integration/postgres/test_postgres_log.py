"""PostgreSQL's log: commits that it contains before they are visible, and what psycopg2 confirms.

The server commits every session's transaction at once, except with synchronous_commit=on: such a commit is in the log
and invisible while it waits for a standby that does not exist, until it is cancelled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.log_places import lsn_number
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import LogPiece
from dblake.base.lake.layout import Paths
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.log import PgLogStream
from dblake.transform.reconcile.stream import reconcile_once
from tests.model.dblog import High, Landed, fold, reconcile
from tests.support.backends import PostgresBackend, Row
from tests.support.lake import CaptureLake
from tests.support.postgres import fresh_database

T, OTHER = "public.t", "public.other"
SENDER_TIMEOUT = 4.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    settings = {
        "synchronous_standby_names": "ghost", "synchronous_commit": "local",
        "wal_sender_timeout": f"{SENDER_TIMEOUT}s", "fsync": "off",
    }
    with EmbeddedPostgres(tmp_path_factory.mktemp("ghost") / "data", settings=settings) as server:
        yield server


@pytest.fixture
def backend(server: EmbeddedPostgres) -> Iterator[PostgresBackend]:
    with fresh_database(server) as database:
        backend = PostgresBackend(database)
        for table in (T, OTHER):
            backend.create(TableSchema(table, (Column("id", "integer", False, 1), Column("v", "text"))))
        yield backend
        backend.close()


class InvisibleCommit:
    """A transaction whose commit record is in the log, but which is invisible until ``reveal``."""

    def __init__(self, backend: PostgresBackend, statement: str) -> None:
        self._backend = backend
        self._connection = backend.database.connect()
        with self._connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")
            cursor.execute("SELECT pg_backend_pid()")
            (self._pid,) = cursor.fetchone()
        self._thread = threading.Thread(target=self._run, args=(statement,), daemon=True)
        self._thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        deadline = time.monotonic() + 20
        while not backend.value(waiting, self._pid):
            assert time.monotonic() < deadline, "the commit does not wait for the standby"
            time.sleep(0.02)

    def _run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def reveal(self) -> None:
        self._backend.value("SELECT pg_cancel_backend(%s)", self._pid)
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._connection.close()


@dataclass(frozen=True)
class Dumped:
    """A landing table, and the source's rows once all commits were visible."""

    lake: CaptureLake
    truth: list[Row]


@pytest.fixture(scope="module")
def dumped_across(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    """Dump a table while an update of it is in the log but invisible."""
    lake = CaptureLake(tmp_path_factory.mktemp("invisible"))
    with fresh_database(server) as database:
        backend = PostgresBackend(database)
        backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
        with backend.begin() as transaction:
            for number in ("1", "2", "3"):
                transaction.insert(T, {"id": number, "v": "old"})
        source = backend.source("public.*")
        commit = InvisibleCommit(backend, "UPDATE t SET v = 'new' WHERE id = 1")
        lake.dump(T)
        lake.capture(source)
        assert {"id": "1", "v": "old"} in backend.rows(T)
        commit.reveal()
        yield Dumped(lake, backend.rows(T))
        backend.close()


def expected_state(things: list[Landed]) -> list[Row]:
    rows = fold(reconcile(things)[0])
    return sorted(rows.values(), key=str)


def test_invisible_commit_before_low_is_in_window(dumped_across: Dumped) -> None:
    assert sorted(dumped_across.truth, key=str) == [
        {"id": "1", "v": "new"}, {"id": "2", "v": "old"}, {"id": "3", "v": "old"},
    ]
    things = dumped_across.lake.landed_records()
    assert expected_state(things) == sorted(dumped_across.truth, key=str)


def test_published_rule_without_snapshot_ends_wrong(dumped_across: Dumped) -> None:
    blind = [
        replace(thing, end=replace(thing.end, snapshot=None)) if isinstance(thing, High) else thing
        for thing in dumped_across.lake.landed_records()
    ]
    assert expected_state(blind) == [{"id": "1", "v": "old"}, {"id": "2", "v": "old"}, {"id": "3", "v": "old"}]


@pytest.mark.slow
def test_spark_reconcile_agrees_with_model(dumped_across: Dumped, spark: SparkSession) -> None:
    paths: Paths = dumped_across.lake.paths
    reconcile_once(spark, paths)
    events = spark.read.format("delta").load(paths.events).orderBy("incarnation", "lsn", "seq").collect()
    assert [(e["op"], e["key"]["id"], e["after"]["v"]) for e in events] == [
        ("u", "1", "new"), ("r", "2", "old"), ("r", "3", "old"),
    ]


def read_piece(stream: PgLogStream, *, max_bytes: int = 1 << 20) -> LogPiece:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        piece = stream.read(max_bytes=max_bytes, max_rows=1 << 20, seconds=0.5)
        if piece:
            return piece
    raise AssertionError("no piece within 20 s")


def confirmed_by(backend: PostgresBackend, *, one_cursor: bool) -> tuple[ResumePoint, LogPiece, int]:
    """Acknowledge T1, receive T2, and let the server request a reply inside T3, whose rows are older than both.

    Return T1's resume point, T2's piece, and the LSN that the server has as confirmed.
    """
    source = backend.source("public.t")
    stream = source.open_log(None, 1)
    assert isinstance(stream, PgLogStream)
    if one_cursor:
        stream._confirmer = stream._reader
    try:
        long = backend.database.connect()
        long.autocommit = False
        with long.cursor() as cursor:
            cursor.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1000, 41000) n")
            backend.run("INSERT INTO t VALUES (1, 'T1')")
            first = read_piece(stream).reached
            stream.acknowledge(first)
            backend.run("INSERT INTO t VALUES (2, 'T2')")
            second = read_piece(stream)
            long.commit()
        long.close()
        # The server fills the socket buffers with T3, waits, and requests a reply; the stream reads on, inside T3.
        read_piece(stream, max_bytes=1 << 20)
        time.sleep(SENDER_TIMEOUT * 0.65)
        for _ in range(20):
            read_piece(stream, max_bytes=1 << 20)
            stream.keep_alive()
        deadline = time.monotonic() + 2
        while backend.confirmed() <= lsn_number(first.token) and time.monotonic() < deadline:
            time.sleep(0.05)
        return first, second, backend.confirmed()
    finally:
        stream.close()


def test_keepalive_confirms_acknowledged_only(backend: PostgresBackend) -> None:
    first, _, confirmed = confirmed_by(backend, one_cursor=False)
    assert confirmed == lsn_number(first.token)


@pytest.mark.slow
def test_one_cursor_confirms_unacknowledged_commit(backend: PostgresBackend) -> None:
    """Prove the reason for the second cursor: with one, psycopg2 confirms T2, which has not been acknowledged."""
    _, second, confirmed = confirmed_by(backend, one_cursor=True)
    assert confirmed >= lsn_number(second.reached.token)


def test_keepalive_before_first_message_confirms_nothing(backend: PostgresBackend) -> None:
    stream = backend.source("public.t").open_log(None, 1)
    initial = backend.confirmed()
    backend.run("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n")
    deadline = time.monotonic() + SENDER_TIMEOUT * 1.5
    while time.monotonic() < deadline:
        assert stream.read(max_bytes=1 << 20, max_rows=1 << 20, seconds=0.5) is None
    assert backend.confirmed() == initial
    stream.close()
