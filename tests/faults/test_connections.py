"""Connections that break where it hurts or go quiet, and servers that are restarted, while capture goes on.

Where a connection ends between two statements is the conformance suite's; here it ends within a COPY, a result, a
message of the log or a packet of the binlog, on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.core.schema import Column, TableSchema
from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend, mysql_backend
from tests.support.postgres import fresh_database
from tests.support.proxy import Proxy
from tests.support.rig import Job, Rig, T, rig_at, rig_on

TABLE = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))
SqlBackend = PostgresBackend | MysqlBackend


@pytest.fixture(params=["postgres", "mariadb"])
def backend(request: pytest.FixtureRequest) -> Iterator[SqlBackend]:
    with ExitStack() as stack:
        server = request.getfixturevalue(request.param)
        if request.param == "postgres":
            backend: SqlBackend = PostgresBackend(stack.enter_context(fresh_database(server)))
            stack.callback(backend.close)
        else:
            backend = stack.enter_context(mysql_backend(server))
        yield backend


@pytest.fixture
def way(backend: SqlBackend) -> Iterator[Proxy]:
    """The only way to the database for what is captured from now on; it has one table, without rows."""
    backend.create(TABLE, toasted=["v"])
    backend.source("public.*")
    assert backend.settings is not None
    direct = backend.settings
    with Proxy(direct.port) as way:
        backend.settings = replace(direct, port=way.port)
        yield way
        backend.settings = direct


def fill(backend: SqlBackend, rows: int, wide: int) -> None:
    """So many rows, in one transaction."""
    with backend.begin() as transaction:
        for number in range(1, rows + 1):
            transaction.insert(T, {"id": str(number), "v": f"{number:09}" * (wide // 9)})


def test_cut_in_the_middle_of_a_chunk_it_is_read_again(backend: SqlBackend, way: Proxy, tmp_path: Path) -> None:
    lake = CaptureLake(tmp_path)
    fill(backend, 1500, 900)
    source = backend.source("public.*")
    lake.capture(source)
    lake.dump(T)
    lows = []

    def cut_the_next_read() -> None:
        lows.append(len(lows))
        if len(lows) == 1:
            way.cut_after(400_000)

    # The first chunk has 1000 rows, so it is cut at about its half.
    lake.capture(source, steps={("every low", T): cut_the_next_read}, reconnect_seconds=20)
    assert way.pending_cuts == 0
    assert len(lows) == 4, "two chunks, one of them twice, and the end of the dump"
    events, ledger = lake.reconciled()
    assert [event.op for event in events] == ["c"] * 1500 + ["r"] * 1500
    assert [(line.status, line.read) for line in ledger] == [("closed", 1000), ("closed", 500), ("closed", 0)]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


def test_cut_in_the_middle_of_a_row_of_the_log_it_goes_on_there(
    backend: SqlBackend, way: Proxy, tmp_path: Path
) -> None:
    lake = CaptureLake(tmp_path)
    # 3.6 MB in one transaction, of which less than a quarter lands at once: the cuts are within its third row, its
    # seventh, and, after it was streamed from its beginning again, far behind what had landed.
    fill(backend, 18, 200_000)
    way.cut_after(500_000, 1_300_000, 3_000_000)
    lake.capture(backend.source("public.*"), max_bytes=800_000, reconnect_seconds=20)
    assert way.pending_cuts == 0
    assert [event.op for event in lake.reconciled()[0]] == ["c"] * 18
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_stalled_for_longer_than_a_heartbeat_it_goes_on(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with rig_on(kind, request, tmp_path) as rig, Proxy(port_of(rig)) as way:
        if isinstance(rig.backend, PostgresBackend):
            # It gives the connection up before it flows again.
            assert rig.backend.settings is not None
            rig.backend.run(f"ALTER ROLE {rig.backend.settings.user} SET wal_sender_timeout = '2s'")
        rig.configure(port=way.port)
        rig.lake.dump(T)
        process = rig.start()
        with rig.load(seed=5):
            rig.wait_for_batches(5, by=process)
            way.stall()
            # What had come before may still land.
            time.sleep(1.0)
            stood = rig.newest_batch()
            time.sleep(4.0)
            assert rig.newest_batch() == stood
            way.resume()
            rig.wait_for_batches(5, by=process)
            rig.lake.dump(T)
            way.cut()
            rig.wait_for_batches(5, by=process)
        ended(process)
        rig.configure()
        rig.catch_up()
        rig.verify()


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
@pytest.mark.timeout(600)
def test_a_server_restarted_and_crashed_is_waited_for(kind: str, tmp_path: Path) -> None:
    # What is acknowledged to a client must outlive the crash, or there is nothing to compare with.
    durable = ("--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1")
    data = tmp_path / "server"
    server = EmbeddedPostgres(data) if kind == "postgres" else MysqlServer("mariadb", data, *durable)
    with server, rig_at(server, tmp_path) as rig:
        process = rig.start()
        with rig.load(seed=6, patient=True):
            for crash in (False, True):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process)
                server.restart(crash=crash)
                rig.wait_for_batches(5, by=process)
        ended(process)
        rig.catch_up()
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done", "done"]
        rig.verify()


def port_of(rig: Rig) -> int:
    assert rig.backend.settings is not None
    return rig.backend.settings.port


def ended(process: Job) -> None:
    """Asks capture to end, which it must do well."""
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
