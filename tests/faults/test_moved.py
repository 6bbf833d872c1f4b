"""MySQL and MariaDB failovers by GTID: the log continues on another server, in a new incarnation that is no gap.

Three real servers replicate asynchronously. So a replica is promoted once it has what landed, unless the test is about
one that has not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.query import query_rows
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.serve.consume.file_checkpoint import FileCheckpoint
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.delivery import Delivery, DeliverySettings
from dblake.serve.outputs.held_store import HeldStore
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.conformance.script import event_lines
from tests.support.consumers import LOCAL_SESSION, describe
from tests.support.failover import connect, incarnations, move
from tests.support.lake import CaptureLake
from tests.support.mysql import Flavour, MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import cluster_of
from tests.support.proxy import Proxy
from tests.support.rig import Rig
from tests.support.sql_delivery import sql_output

pytestmark = pytest.mark.timeout(1500)

T = "public.t"
SECONDS = 240
"""Three servers and a capture start and replay beside one another."""
FLAVOURS: list[Flavour] = ["mariadb", "mysql"]


@pytest.fixture(params=FLAVOURS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MysqlServer]:
    with MysqlServer(request.param, tmp_path / "data", "--server-id=11") as server:
        yield server


class Consumers:
    """A subscriber and a SQL output of one lake, which continue from their checkpoints."""

    def __init__(self, lake: CaptureLake, server: MysqlServer, folder: Path) -> None:
        self._lake, self._server, self._store = lake, server, folder / "output"
        self._checkpoint: str | None = None
        server.run("CREATE DATABASE copy")

    def read(self) -> list[str]:
        """Bring events, state, the output and the subscriber up to landing; return what the subscriber received."""
        paths = self._lake.paths
        reconcile_once(LOCAL_SESSION, paths)
        assert not [result.error for result in run_state(LOCAL_SESSION, paths) if result.error]
        store = HeldStore(FileCheckpoint(self._store))
        output = sql_output(f"{self._server.flavour}://root@127.0.0.1:{self._server.port}/copy", "")
        settings = SubscriptionSettings(until_caught_up=True)
        how = DeliverySettings("copy", max_events=100, retry_seconds=5, max_dead_letters=0)

        def open_feed(held: str | None) -> Subscription:
            return Subscription([paths], replace(settings, checkpoint=held), store)

        Delivery(output, open_feed, paths, how, threading.Event()).run()
        with Subscription([paths], replace(settings, checkpoint=self._checkpoint)) as subscription:
            received = list(subscription)
        self._checkpoint = received[-1].checkpoint if received else self._checkpoint
        return describe(received)

    def target(self) -> list[tuple[object, ...]]:
        """Return the rows of the output's table."""
        return self._server.rows("SELECT id, v FROM copy.t ORDER BY id")


def test_other_server_with_all_gtids_continues(server: MysqlServer, tmp_path: Path) -> None:
    """The server gets another identity, as behind a blue/green switch, and keeps its transactions."""
    backend, lake = MysqlBackend(server), CaptureLake(tmp_path)
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "varchar(40)"))))
    server.run("INSERT INTO public.t VALUES (1, 'a')")
    source, consumers = backend.source("public.*"), Consumers(lake, server, tmp_path)
    lake.dump(T, keys=[("1",)])
    lake.capture(source)
    server.run("INSERT INTO public.t VALUES (2, 'b')")
    lake.capture(source)
    assert consumers.read()[-1] == "bootstrap_finished" and consumers.read() == []
    server.run("UPDATE public.t SET v = 'c' WHERE id = 1")
    server.change_identity(12)
    server.run("INSERT INTO public.t VALUES (3, 'd')")
    lake.capture(source)
    events, ledger = lake.reconciled()
    assert event_lines(events, T) == ["r 1 a", "c 2 b", "u 1 c", "c 3 d"]
    assert lake.reached.resume.incarnation == 2
    ((status, reason),) = [(line.status, line.reason) for line in ledger if line.chunk_id == ""]
    assert status == "moved"
    assert reason == f"server {lake.reached.server.server} continues the log of incarnation 1"
    assert [dump["state"] for dump in lake.dumps()] == ["done"]
    assert consumers.read() == ["incarnation", 'public.t u {"id": "1"}', 'public.t c {"id": "3"}']
    assert consumers.target() == [(1, "c"), (2, "b"), (3, "d")]
    (row,) = query_rows(lake.paths.windows, "SELECT status, reason, incarnation FROM t WHERE chunk_id IS NULL")
    assert row == {"status": "moved", "reason": reason, "incarnation": 2}
    lake.capture(source)
    assert lake.reached.resume.incarnation == 2
    assert LogPosition.parse(lake.reached.resume.token).is_exact


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_promoted_replicas_continue_without_dump(flavour: Flavour, tmp_path: Path) -> None:
    """Two crashes, the second beside a dump, and a switch back to the first server, which follows the last one."""
    with cluster_of(flavour, tmp_path) as cluster:
        first = cluster.primary
        rig = Rig(MysqlBackend(first), tmp_path)
        with Proxy(first.port) as proxy:
            rig.configure(port=proxy.port, delay=3.0)
            process = rig.start()
            with rig.load(seed=3):
                rig.wait_for_batches(5, by=process, seconds=SECONDS)
            move(rig, cluster, proxy, process, crash=True)
            with rig.load(seed=4):
                rig.lake.dump(T)
                rig.wait_for_batches(10, by=process, seconds=SECONDS)
            move(rig, cluster, proxy, process, crash=True)
            assert [dump["state"] for dump in rig.lake.dumps()] == ["running"]
            with rig.load(seed=5):
                rig.wait_for_batches(5, by=process, seconds=SECONDS)
            first.start()
            cluster.replicas.append(first)
            cluster.follow(first)
            move(rig, cluster, proxy, process, crash=False)
            with rig.load(seed=6):
                rig.wait_for_batches(5, by=process, seconds=SECONDS)
            process.terminate()
            _, log = process.communicate(timeout=120)
            assert process.returncode == 0, log
            assert "another server has everything that has landed: no gap" in log
        rig.configure()
        rig.catch_up()
        assert rig.lake.reached.resume.incarnation == 4 and incarnations(rig) == ["moved"] * 3
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done"]
        rig.verify()


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_replica_without_landed_transaction_is_rejected(flavour: Flavour, tmp_path: Path) -> None:
    with cluster_of(flavour, tmp_path, size=2) as cluster:
        primary, (replica,) = cluster.primary, cluster.replicas
        # One heartbeat, so that the row alone is missing.
        rig = Rig(MysqlBackend(primary), tmp_path, heartbeat_seconds=1000.0)
        process = rig.start()
        rig.wait_for_batches(1, by=process, seconds=SECONDS)
        cluster.wait()
        cluster.pause(replica)
        primary.run("INSERT INTO public.t VALUES (1000, 0, 'lost')")
        rig.wait_for_batches(1, by=process, seconds=SECONDS)
        process.terminate()
        assert process.wait(timeout=60) == 0
        primary.stop(crash=True)
        cluster.promote(replica)
        connect(rig, replica)
        rig.configure()
        for key in (1001, 1002):
            before = rig.lake.reached
            rejected = rig.start("--until-caught-up")
            _, log = rejected.communicate(timeout=120)
            assert rejected.returncode == 78 and "the server that answers lacks 1 transaction that landed" in log, log
            assert rig.lake.reached == before
            replica.run(f"INSERT INTO public.t VALUES ({key}, 0, 'new')")
        accepted = rig.start("--until-caught-up", "--accept-gap")
        assert accepted.wait(timeout=300) == 0
        assert rig.lake.reached.resume.incarnation == 2 and incarnations(rig) == ["gap"]
        assert rig.lake.state(T) == {(row["id"],): row for row in rig.backend.rows(T)}
