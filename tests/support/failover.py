"""Failovers under a rig: a promoted standby of PostgreSQL, a promoted replica of MySQL or MariaDB."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import Cluster
from tests.support.postgres import Database
from tests.support.proxy import Proxy
from tests.support.rig import Job, Rig


def wait_until_synced(standby: EmbeddedPostgres, primary: EmbeddedPostgres, rig: Rig) -> None:
    """Wait until the standby has the slot and the log; capture has to advance the slot before it can be copied."""
    theirs, ours = Database(primary, "postgres"), Database(standby, "postgres")
    deadline = time.monotonic() + 60
    while not ours.rows("SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"):
        assert time.monotonic() < deadline, "the slot was not copied"
        theirs.run("SELECT pg_log_standby_snapshot()")
        rig.catch_up()
    ((end,),) = theirs.rows("SELECT pg_current_wal_lsn()::text")
    while ours.rows("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", (end,)) != [(False,)]:
        assert time.monotonic() < deadline, "the log was not replayed"
        time.sleep(0.1)


def promote(standby: EmbeddedPostgres, rig: Rig) -> None:
    """Promote the standby; the rig's applications and checks connect to it from now on."""
    assert Database(standby, "postgres").rows("SELECT pg_promote()") == [(True,)]
    backend = rig.backend
    assert isinstance(backend, PostgresBackend) and backend.settings is not None
    backend.database = replace(backend.database, server=standby)
    backend.settings = replace(backend.settings, port=standby.port)


def gaps(rig: Rig) -> list[str]:
    """Return the reasons of the gaps in the window ledger."""
    return [line.reason or "" for line in rig.lake.reconciled()[1] if line.status == "gap"]


def move(rig: Rig, cluster: Cluster, proxy: Proxy, process: Job, *, crash: bool) -> None:
    """Replace the primary while log waits that has not landed; the address leads to the promoted replica."""
    process.send_signal(signal.SIGSTOP)  # what capture writes itself would land too, and the replicas might miss it
    with rig.load(seed=cluster.primary.port):
        time.sleep(1.0)
    cluster.wait()
    cluster.primary.stop(crash=crash)
    cluster.promote(cluster.replicas[0])
    connect(rig, cluster.primary)
    proxy.redirect(cluster.primary.port)
    process.send_signal(signal.SIGCONT)


def connect(rig: Rig, server: MysqlServer) -> None:
    """Let the applications and checks of the rig connect to a server from now on."""
    backend = rig.backend
    assert isinstance(backend, MysqlBackend) and backend.settings is not None
    backend.server, backend.settings = server, replace(backend.settings, port=server.port)


def incarnations(rig: Rig) -> list[str]:
    """Return how each incarnation but the first began, by the ledger."""
    return [line.status for line in rig.lake.reconciled()[1] if line.chunk_id == ""]
