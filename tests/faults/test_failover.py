"""Captures that stand by for one another: the leader frozen and thawed, ZooKeeper restarted and gone, its nodes lost.

Real ZooKeeper, real PostgreSQL, and applications that write all the while, with dumps one after another. Each row
counts its own updates, so a change lost or told twice shows as a step that is not one.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dblake.capture.progress import open_progress
from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.postgres import fresh_database
from tests.support.proxy import Proxy
from tests.support.rig import Rig, T
from tests.support.zookeeper import ZookeeperServer

SESSION = 4.0


class Watched:
    """A capture and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def said(self) -> str:
        return "".join(self._lines)

    def says(self, words: str) -> None:
        """Waits until it does."""
        deadline = time.monotonic() + 60
        while not re.search(words, self.said):
            assert time.monotonic() < deadline and self.process.poll() is None, self.said
            time.sleep(0.05)

    def ends(self) -> int:
        """Waits until it does; its exit code."""
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return code

    def end(self) -> None:
        """Asks it to, as an operator does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.ends() == 0, self.said

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    @property
    def frozen(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Cluster(Rig):
    """Captures of one busy table that share a ``progress`` URL."""

    def __init__(self, backend: PostgresBackend, folder: Path, url: str) -> None:
        super().__init__(backend, folder)
        self.shares(url)
        self.lake.store = open_progress(url, "shop")
        self._captures: list[Watched] = []

    def shares(self, url: str) -> None:
        """What the captures started from now on share."""
        file = self._folder / "shop.yaml"
        text = re.sub(r'"progress": "[^"]*"', f'"progress": "{url}"', file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")

    def capture(self, *arguments: str, failpoint: str = "") -> Watched:
        watched = Watched(self.start(*arguments, failpoint=failpoint))
        self._captures.append(watched)
        return watched

    def kill(self) -> None:
        for watched in self._captures:
            watched.process.kill()
            watched.process.wait()

    @contextmanager
    def busy(self, seed: int) -> Iterator[None]:
        """Writes, and a dump whenever there is none, for as long as the block lasts."""
        stop = threading.Event()

        def dump() -> None:
            while not stop.wait(0.2):
                if all(entry["state"] in ("done", "cancelled") for entry in self.lake.dumps()):
                    self.lake.dump(T)

        dumper = threading.Thread(target=dump)
        dumper.start()
        try:
            with self.load(seed):
                yield
        finally:
            stop.set()
            dumper.join()

    def lands(self, batches: int, by: Watched) -> None:
        """Waits until so many more have landed."""
        wanted, deadline = self.newest_batch() + batches, time.monotonic() + 60
        while self.newest_batch() < wanted:
            assert time.monotonic() < deadline and by.process.poll() is None, by.said
            time.sleep(0.1)

    def epochs(self) -> list[int]:
        """The lease epochs in landing, in the order of its batches; each must have come to its end for good."""
        table = self.lake.landing()
        epochs = [epoch for _, epoch in sorted({*zip(
            table["batch"].to_pylist(), table["lease_epoch"].to_pylist(), strict=True)})]
        assert epochs == sorted(epochs)
        return sorted(set(epochs))

    def verify(self) -> None:
        """Besides what a Rig looks at: of each chunk one window counts, and all of it is of one lease epoch."""
        super().verify()
        _, ledger = self.lake.reconciled()
        counted = [line.chunk_id for line in ledger if line.status == "closed"]
        assert len(counted) == len(set(counted))
        marks = self.lake.landing().to_pylist()
        for chunk in counted:
            assert len({row["lease_epoch"] for row in marks if row["chunk_id"] == chunk}) == 1


@pytest.fixture
def cluster(postgres: EmbeddedPostgres, zookeeper_url: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster_at(postgres, zookeeper_url, tmp_path) as cluster:
        yield cluster


@contextmanager
def cluster_at(postgres: EmbeddedPostgres, url: str, folder: Path) -> Iterator[Cluster]:
    with fresh_database(postgres) as database:
        backend = PostgresBackend(database)
        cluster = Cluster(backend, folder, url)
        try:
            yield cluster
        finally:
            cluster.kill()
            backend.close()


def test_a_leader_frozen_past_its_session_is_followed_and_ends_by_itself(cluster: Cluster) -> None:
    with cluster.busy(seed=1):
        first = cluster.capture()
        first.says("capture of shop leads")
        second = cluster.capture()
        second.says(rf"capture of shop stands by: process {first.process.pid} on \S+ leads")
        cluster.lands(5, by=first)
        first.freeze()
        time.sleep(2 * SESSION)
        second.says("capture of shop leads")
        second.says("ended another connection's hold of the slot")
        cluster.lands(5, by=second)
        assert first.frozen
        first.thaw()
        assert first.ends() == 75, first.said
        ended = "leads no more|not written, for the lease was lost|was refused: another capture has landed"
        assert re.search(f"dblake capture: .*({ended})", first.said)
        cluster.lands(5, by=second)
        second.end()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


def test_a_leader_frozen_after_it_looked_at_its_lease_is_refused_by_landing(cluster: Cluster) -> None:
    with cluster.busy(seed=2):
        first = cluster.capture(failpoint="landing.before_commit:40:freeze")
        first.says("capture of shop leads")
        second = cluster.capture()
        second.says("capture of shop leads")
        cluster.lands(5, by=second)
        assert first.frozen
        first.thaw()
        assert first.ends() == 75, first.said
        assert "batch 40 was refused: another capture has landed since" in first.said, first.said
        cluster.lands(5, by=second)
        second.end()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


def test_a_leader_cut_off_from_zookeeper_stops_before_another_leads(
    cluster: Cluster, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    with Proxy(zookeeper.port) as way, cluster.load(seed=8):
        cluster.lake.dump(T)
        cluster.shares(zookeeper_url.replace(str(zookeeper.port), str(way.port)))
        first = cluster.capture()
        first.says("capture of shop leads")
        cluster.shares(zookeeper_url)
        second = cluster.capture()
        second.says("stands by")
        cluster.lands(5, by=first)
        way.stall()
        second.says("capture of shop leads")
        cluster.lands(5, by=second)
        way.resume()
        assert first.ends() == 75, first.said
        assert "was refused" not in first.said
        second.end()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


def test_a_leader_that_is_killed_is_followed(cluster: Cluster) -> None:
    with cluster.busy(seed=3):
        first = cluster.capture()
        first.says("capture of shop leads")
        second = cluster.capture()
        second.says("stands by")
        cluster.lands(5, by=first)
        first.process.kill()
        second.says("capture of shop leads")
        cluster.lands(5, by=second)
        second.end()
    cluster.catch_up()
    cluster.verify()


def test_who_stands_by_ends_with_0_and_scheduled_runs_are_told_who_leads(cluster: Cluster) -> None:
    leader = cluster.capture()
    leader.says("capture of shop leads")
    standby = cluster.capture()
    scheduled = [cluster.capture("--until-caught-up"), cluster.capture("--seconds", "1")]
    standby.says("stands by")
    standby.end()
    for run in scheduled:
        assert run.ends() == 75, run.said
        told = rf"source shop: another capture leads \(process {leader.process.pid} on \S+\)\. Next: let it do the work"
        assert re.search(told, run.said)
    leader.end()
    cluster.catch_up()


def test_zookeeper_restarted_or_away_for_longer_than_a_session(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    session = 8.0
    with ZookeeperServer(tmp_path / "zookeeper") as server, cluster_at(
        postgres, f"zookeeper://{server.hosts}/dblake?session_timeout={session}", tmp_path
    ) as cluster:
        with cluster.load(seed=4):
            cluster.lake.dump(T)
            leader = cluster.capture()
            leader.says("capture of shop leads")
            cluster.lands(5, by=leader)
            server.stop()
            server.start()
            cluster.lands(10, by=leader)
            server.stop()
            time.sleep(session)
            written = cluster.newest_batch()
            time.sleep(2)
            assert cluster.newest_batch() == written
            server.start()
            # ZooKeeper begins to count anew when it is back: who is there in time keeps the session, and so leads on.
            deadline = time.monotonic() + 2 * session
            while cluster.newest_batch() == written and leader.process.poll() is None:
                assert time.monotonic() < deadline, leader.said
                time.sleep(0.1)
            if leader.process.poll() is None:
                leader.end()
            else:
                assert leader.ends() == 75, leader.said
        cluster.catch_up()
        assert cluster.epochs() == [1, 2]
        cluster.verify()


def test_without_zookeeper_for_long_the_leader_writes_nothing_more_and_ends(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with ZookeeperServer(tmp_path / "zookeeper") as server, cluster_at(
        postgres, f"zookeeper://{server.hosts}/dblake?session_timeout=2", tmp_path
    ) as cluster:
        with cluster.load(seed=9):
            cluster.lake.dump(T)
            leader = cluster.capture()
            cluster.lands(5, by=leader)
            server.stop()
            time.sleep(2)
            written = cluster.newest_batch()
            assert leader.ends() == 75, leader.said
            assert re.search("dblake capture: .*(leads no more: ZooKeeper has not|does not) answer", leader.said)
            assert cluster.newest_batch() == written
            server.start()
        cluster.catch_up()
        assert cluster.epochs() == [1, 2]
        cluster.verify()


@pytest.mark.parametrize("kind", ["file", "zookeeper"])
def test_documents_lost_while_dumps_are_queued_cost_the_dumps_and_nothing_else(
    postgres: EmbeddedPostgres, zookeeper: ZookeeperServer, zookeeper_url: str, tmp_path: Path, kind: str
) -> None:
    url = {"file": f"file:{tmp_path}/progress", "zookeeper": zookeeper_url}[kind]
    with cluster_at(postgres, url, tmp_path) as cluster:
        with cluster.load(seed=5):
            lost = [cluster.lake.dump(T) for _ in range(5)]
            leader = cluster.capture()
            cluster.lands(5, by=leader)
            if kind == "file":
                (tmp_path / "progress/shop").rename(tmp_path / "lost")
            else:
                client = zookeeper.client()
                client.delete(f"/{zookeeper_url.partition('?')[0].rpartition('/')[2]}/shop/documents", recursive=True)
                client.stop()
            cluster.lands(5, by=leader)
            assert not {entry["id"] for entry in cluster.lake.dumps() if entry["state"] != "cancelled"} & set(lost)
            again = cluster.lake.dump(T)
            cluster.lands(5, by=leader)
            leader.end()
        cluster.catch_up()
        assert {entry["id"] for entry in cluster.lake.dumps() if entry["state"] == "done"} == {again}
        cluster.verify()


def test_all_nodes_lost_the_leader_ends_and_the_next_goes_on_from_landing(
    cluster: Cluster, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    with cluster.load(seed=6):
        cluster.lake.dump(T)
        leader = cluster.capture()
        cluster.lands(5, by=leader)
        client = zookeeper.client()
        client.delete(f"/{zookeeper_url.partition('?')[0].rpartition('/')[2]}", recursive=True)
        client.stop()
        assert leader.ends() == 75, leader.said
        cluster.lake.dump(T)
    cluster.catch_up()
    assert cluster.epochs() == [1, 2]
    cluster.verify()


def test_without_zookeeper_nobody_ends_anothers_hold_of_the_slot(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with cluster_at(postgres, f"file:{tmp_path}/progress", tmp_path) as cluster, cluster.load(seed=7):
        first = cluster.capture()
        cluster.lands(2, by=first)
        here = cluster.capture()
        assert here.ends() == 75
        assert f"another capture holds the lease (process {first.process.pid})" in here.said
        cluster.shares(f"file:{tmp_path}/elsewhere")
        elsewhere = cluster.capture()
        assert elsewhere.ends() == 75
        assert "is taken by server process" in elsewhere.said
        cluster.lands(2, by=first)
        first.end()
