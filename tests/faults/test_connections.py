"""Connections that break or stall on the wire, and servers that restart, while capture runs.

The conformance suite breaks connections between two statements; here they break within a COPY, a result, a message of
the log or a packet of the binlog.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
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
            postgres = PostgresBackend(stack.enter_context(fresh_database(server)))
            stack.callback(postgres.close)
            backend: SqlBackend = postgres
        else:
            backend = stack.enter_context(mysql_backend(server))
        yield backend


@pytest.fixture
def proxy(backend: SqlBackend) -> Iterator[Proxy]:
    """Yield the proxy through which later sources connect; the database has one table without rows."""
    backend.create(TABLE, toasted=["v"])
    backend.source("public.*")
    assert backend.settings is not None
    direct = backend.settings
    with Proxy(direct.port) as proxy:
        backend.settings = replace(direct, port=proxy.port)
        yield proxy
        backend.settings = direct


def fill(backend: SqlBackend, rows: int, wide: int) -> None:
    """Insert rows of ``wide`` bytes in one transaction."""
    with backend.begin() as transaction:
        for number in range(1, rows + 1):
            transaction.insert(T, {"id": str(number), "v": f"{number:09}" * (wide // 9)})


def test_connection_cut_inside_chunk_rereads_it(backend: SqlBackend, proxy: Proxy, tmp_path: Path) -> None:
    lake = CaptureLake(tmp_path)
    fill(backend, 1500, 900)
    source = backend.source("public.*")
    lake.capture(source)
    lake.dump(T)
    lows: list[int] = []

    def cut_the_first_read() -> None:
        lows.append(len(lows))
        if len(lows) == 1:
            proxy.cut_after(400_000)

    # The first chunk has 1000 rows, so it is cut at about half of it.
    lake.capture(source, steps={("every low", T): cut_the_first_read}, reconnect_seconds=20)
    assert proxy.pending_cuts == 0
    assert len(lows) == 4, "two chunks, one of them twice, and the end of the dump"
    events, ledger = lake.reconciled()
    assert [event.op for event in events] == ["c"] * 1500 + ["r"] * 1500
    assert [(line.status, line.read) for line in ledger] == [("closed", 1000), ("closed", 500), ("closed", 0)]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


def test_connection_cut_inside_log_row_resumes(
    backend: SqlBackend, proxy: Proxy, tmp_path: Path
) -> None:
    lake = CaptureLake(tmp_path)
    # 3.6 MB in one transaction, less than a quarter of which lands at once: the cuts are inside its third row, its
    # seventh, and, after it was streamed again from its start, far behind what has landed.
    fill(backend, 18, 200_000)
    proxy.cut_after(500_000, 1_300_000, 3_000_000)
    lake.capture(backend.source("public.*"), max_bytes=800_000, reconnect_seconds=20)
    assert proxy.pending_cuts == 0
    assert [event.op for event in lake.reconciled()[0]] == ["c"] * 18
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_connection_stalled_beyond_heartbeat_recovers(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with rig_on(kind, request, tmp_path) as rig, Proxy(port_of(rig)) as proxy:
        if isinstance(rig.backend, PostgresBackend):
            # The server drops the connection before the stall ends.
            assert rig.backend.settings is not None
            rig.backend.run(f"ALTER ROLE {rig.backend.settings.user} SET wal_sender_timeout = '2s'")
        rig.configure(port=proxy.port)
        rig.lake.dump(T)
        process = rig.start()
        with rig.load(seed=5):
            rig.wait_for_batches(5, by=process)
            proxy.stall()
            # Rows that were received before the stall may still land.
            time.sleep(1.0)
            stalled = rig.newest_batch()
            time.sleep(4.0)
            assert rig.newest_batch() == stalled
            proxy.resume()
            rig.wait_for_batches(5, by=process)
            rig.lake.dump(T)
            proxy.cut()
            rig.wait_for_batches(5, by=process)
        stop(process)
        rig.configure()
        rig.catch_up()
        rig.verify()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
@pytest.mark.timeout(600)
def test_capture_reconnects_after_server_restart_and_crash(kind: str, tmp_path: Path) -> None:
    # Commits acknowledged to a client must survive the crash, or there is nothing to compare with.
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
        stop(process)
        rig.catch_up()
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done", "done"]
        rig.verify()


def port_of(rig: Rig) -> int:
    assert rig.backend.settings is not None
    return rig.backend.settings.port


def stop(process: Job) -> None:
    """Stop capture and require that it ends with 0."""
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
