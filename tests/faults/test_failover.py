"""Failover between captures: the leader frozen, killed or cut off, ZooKeeper restarted or down, its nodes lost.

Real ZooKeeper, real PostgreSQL, and applications that write all the time, with one dump after another. Each row counts
its own updates, so a change that is lost or repeated shows as a wrong step.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NotEmptyError

from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.postgres import fresh_database
from tests.support.proxy import Proxy
from tests.support.rig import Rig, T
from tests.support.zookeeper import ZookeeperServer


class CaptureProcess:
    """A capture process and its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def log(self) -> str:
        """What the process has logged."""
        return "".join(self._lines)

    def wait_for_log(self, pattern: str) -> None:
        """Wait until the log has a match."""
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.log):
            assert time.monotonic() < deadline and self.process.poll() is None, self.log
            time.sleep(0.05)

    def wait_for_exit(self) -> int:
        """Wait until the process ends; return its exit code."""
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return code

    def stop(self) -> None:
        """Send SIGTERM and require that the process ends with 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait_for_exit() == 0, self.log

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
        self.set_progress(url)
        self.lake.store = open_progress(url, "shop")
        self._captures: list[CaptureProcess] = []

    def set_progress(self, url: str) -> None:
        """Set the ``progress`` URL of the captures started from now on."""
        file = self._folder / "shop.yaml"
        text = re.sub(r'"progress": "[^"]*"', f'"progress": "{url}"', file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")

    def capture(self, *arguments: str, failpoint: str = "") -> CaptureProcess:
        """Start a capture process."""
        capture = CaptureProcess(self.start(*arguments, failpoint=failpoint))
        self._captures.append(capture)
        return capture

    def kill(self) -> None:
        for capture in self._captures:
            capture.process.kill()
            capture.process.wait()

    @contextmanager
    def load_and_dumps(self, seed: int) -> Iterator[None]:
        """Write, and queue a dump whenever there is none, inside the block."""
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

    def wait_for_landed(self, batches: int, by: CaptureProcess) -> None:
        """Wait until so many more batches have landed."""
        target, deadline = self.newest_batch() + batches, time.monotonic() + 60
        while self.newest_batch() < target:
            assert time.monotonic() < deadline and by.process.poll() is None, by.log
            time.sleep(0.1)

    def epochs(self) -> list[int]:
        """Return the lease epochs in landing; in the order of batches no epoch may follow a later one."""
        table = self.lake.landing()
        epochs = [epoch for _, epoch in sorted({*zip(
            table["batch"].to_pylist(), table["lease_epoch"].to_pylist(), strict=True)})]
        assert epochs == sorted(epochs)
        return sorted(set(epochs))

    def verify(self) -> None:
        """Verify as Rig does, and that each chunk has one closed window, all of one lease epoch."""
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


@pytest.mark.slow
def test_leader_frozen_past_session_is_replaced_and_exits(cluster: Cluster) -> None:
    with cluster.load_and_dumps(seed=1):
        first = cluster.capture()
        first.wait_for_log("capture of shop leads")
        second = cluster.capture()
        second.wait_for_log(rf"capture of shop is on standby: process {first.process.pid} on \S+ leads")
        cluster.wait_for_landed(5, by=first)
        first.freeze()
        second.wait_for_log("capture of shop leads")
        second.wait_for_log("terminated another connection that held slot")
        cluster.wait_for_landed(5, by=second)
        assert first.frozen
        first.thaw()
        assert first.wait_for_exit() == 75, first.log
        ended = "lost its lease|not written, because the lease was lost|was rejected: another capture has landed"
        assert re.search(f"dblake capture: .*({ended})", first.log)
        cluster.wait_for_landed(5, by=second)
        second.stop()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


def test_leader_frozen_after_lease_check_is_fenced_by_landing(cluster: Cluster) -> None:
    with cluster.load_and_dumps(seed=2):
        first = cluster.capture(failpoint="landing.before_commit:40:freeze")
        first.wait_for_log("capture of shop leads")
        second = cluster.capture()
        second.wait_for_log("capture of shop leads")
        cluster.wait_for_landed(5, by=second)
        assert first.frozen
        first.thaw()
        assert first.wait_for_exit() == 75, first.log
        assert "batch 40 was rejected: another capture has landed a batch since" in first.log, first.log
        cluster.wait_for_landed(5, by=second)
        second.stop()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


@pytest.mark.slow
def test_leader_cut_off_from_zookeeper_stops_before_successor(
    cluster: Cluster, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    with Proxy(zookeeper.port) as proxy, cluster.load(seed=8):
        cluster.lake.dump(T)
        cluster.set_progress(zookeeper_url.replace(str(zookeeper.port), str(proxy.port)))
        first = cluster.capture()
        first.wait_for_log("capture of shop leads")
        cluster.set_progress(zookeeper_url)
        second = cluster.capture()
        second.wait_for_log("is on standby")
        cluster.wait_for_landed(5, by=first)
        proxy.stall()
        second.wait_for_log("capture of shop leads")
        cluster.wait_for_landed(5, by=second)
        proxy.resume()
        assert first.wait_for_exit() == 75, first.log
        assert "was rejected" not in first.log
        second.stop()
    cluster.catch_up()
    assert cluster.epochs() == [1, 2, 3]
    cluster.verify()


def test_killed_leader_is_replaced(cluster: Cluster) -> None:
    with cluster.load_and_dumps(seed=3):
        first = cluster.capture()
        first.wait_for_log("capture of shop leads")
        second = cluster.capture()
        second.wait_for_log("is on standby")
        cluster.wait_for_landed(5, by=first)
        first.process.kill()
        second.wait_for_log("capture of shop leads")
        cluster.wait_for_landed(5, by=second)
        second.stop()
    cluster.catch_up()
    cluster.verify()


def test_standby_exits_0_and_scheduled_run_names_leader(cluster: Cluster) -> None:
    leader = cluster.capture()
    leader.wait_for_log("capture of shop leads")
    standby = cluster.capture()
    scheduled = [cluster.capture("--until-caught-up"), cluster.capture("--seconds", "1")]
    standby.wait_for_log("is on standby")
    standby.stop()
    for run in scheduled:
        assert run.wait_for_exit() == 75, run.log
        leads = rf"another capture leads \(process {leader.process.pid} on \S+\)"
        assert re.search(rf"source shop: {leads}\. Next: leave the source to it", run.log)
    leader.stop()
    cluster.catch_up()


@pytest.mark.slow
def test_leader_survives_zookeeper_restart_and_outage(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    session = 8.0
    with ZookeeperServer(tmp_path / "zookeeper") as server, cluster_at(
        postgres, f"zookeeper://{server.hosts}/dblake?session_timeout={session}", tmp_path
    ) as cluster:
        with cluster.load(seed=4):
            cluster.lake.dump(T)
            leader = cluster.capture()
            leader.wait_for_log("capture of shop leads")
            cluster.wait_for_landed(5, by=leader)
            server.stop()
            server.start()
            cluster.wait_for_landed(10, by=leader)
            server.stop()
            time.sleep(session)
            written = cluster.newest_batch()
            time.sleep(2)
            assert cluster.newest_batch() == written
            server.start()
            # A restarted ZooKeeper restarts all session time-outs: a client that reconnects in time keeps its session.
            deadline = time.monotonic() + 2 * session
            while cluster.newest_batch() == written and leader.process.poll() is None:
                assert time.monotonic() < deadline, leader.log
                time.sleep(0.1)
            if leader.process.poll() is None:
                leader.stop()
            else:
                assert leader.wait_for_exit() == 75, leader.log
        cluster.catch_up()
        assert cluster.epochs() == [1, 2]
        cluster.verify()


@pytest.mark.slow
def test_leader_without_zookeeper_stops_writing_and_exits(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with ZookeeperServer(tmp_path / "zookeeper") as server, cluster_at(
        postgres, f"zookeeper://{server.hosts}/dblake?session_timeout=2", tmp_path
    ) as cluster:
        with cluster.load(seed=9):
            cluster.lake.dump(T)
            leader = cluster.capture()
            cluster.wait_for_landed(5, by=leader)
            server.stop()
            time.sleep(2)
            written = cluster.newest_batch()
            assert leader.wait_for_exit() == 75, leader.log
            assert re.search("dblake capture: .*(lost its lease: ZooKeeper has not|does not) answer", leader.log)
            assert cluster.newest_batch() == written
            server.start()
        cluster.catch_up()
        assert cluster.epochs() == [1, 2]
        cluster.verify()


def delete_node(zookeeper: ZookeeperServer, path: str) -> None:
    """Delete a node with all below it, while capture may add to it."""
    client = zookeeper.client()
    try:
        while True:
            with suppress(NotEmptyError):
                client.delete(path, recursive=True)
                return
    finally:
        client.stop()


@pytest.mark.parametrize("kind", ["file", pytest.param("zookeeper", marks=pytest.mark.slow)])
def test_lost_documents_cost_queued_dumps_only(
    postgres: EmbeddedPostgres, zookeeper: ZookeeperServer, zookeeper_url: str, tmp_path: Path, kind: str
) -> None:
    url = {"file": f"file:{tmp_path}/progress", "zookeeper": zookeeper_url}[kind]
    with cluster_at(postgres, url, tmp_path) as cluster:
        with cluster.load(seed=5):
            lost = [cluster.lake.dump(T) for _ in range(5)]
            leader = cluster.capture()
            cluster.wait_for_landed(5, by=leader)
            if kind == "file":
                (tmp_path / "progress/shop").rename(tmp_path / "lost")
            else:
                delete_node(zookeeper, f"{ZookeeperUrl.parse(zookeeper_url).root}/shop/documents")
            cluster.wait_for_landed(5, by=leader)
            assert not {entry["id"] for entry in cluster.lake.dumps() if entry["state"] != "cancelled"} & set(lost)
            queued = cluster.lake.dump(T)
            cluster.wait_for_landed(5, by=leader)
            leader.stop()
        cluster.catch_up()
        assert {entry["id"] for entry in cluster.lake.dumps() if entry["state"] == "done"} == {queued}
        cluster.verify()


@pytest.mark.slow
def test_leader_exits_when_all_nodes_are_lost_and_next_resumes(
    cluster: Cluster, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    with cluster.load(seed=6):
        cluster.lake.dump(T)
        leader = cluster.capture()
        cluster.wait_for_landed(5, by=leader)
        delete_node(zookeeper, ZookeeperUrl.parse(zookeeper_url).root)
        assert leader.wait_for_exit() == 75, leader.log
        cluster.lake.dump(T)
    cluster.catch_up()
    assert cluster.epochs() == [1, 2]
    cluster.verify()


@pytest.mark.slow
def test_capture_without_zookeeper_leaves_slot_to_its_reader(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with cluster_at(postgres, f"file:{tmp_path}/progress", tmp_path) as cluster, cluster.load(seed=7):
        first = cluster.capture()
        cluster.wait_for_landed(2, by=first)
        here = cluster.capture()
        assert here.wait_for_exit() == 75
        assert f"another capture holds the lease (process {first.process.pid})" in here.log
        cluster.set_progress(f"file:{tmp_path}/elsewhere")
        elsewhere = cluster.capture()
        assert elsewhere.wait_for_exit() == 75
        assert "is in use by server process" in elsewhere.log
        cluster.wait_for_landed(2, by=first)
        first.stop()
