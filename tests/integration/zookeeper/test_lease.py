"""The lease in ZooKeeper: who leads, how long the lease counts as held, and how it ends. On a real server."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblake.base.core.errors import Fenced, ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.zookeeper.lease import ZookeeperLease
from tests.support.zookeeper import ZookeeperServer

SESSION = 3.0
"""Seconds; short, and long enough for a busy machine to renew the lease in time."""
OTHER = f"process {os.getpid()} on {socket.gethostname()}"


def becomes_true(seconds: float, condition: Callable[[], object]) -> bool:
    """Return True once the condition holds, False if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("leases")) as server:
        yield server


@pytest.fixture
def lease_url(server: ZookeeperServer, tmp_path: Path) -> ZookeeperUrl:
    name = tmp_path.name.replace("[", "-").replace("]", "-")
    return ZookeeperUrl.parse(f"zookeeper://{server.hosts}/{name}?session_timeout={SESSION}")


def lease(lease_url: ZookeeperUrl, *, standby: bool = False, stop: threading.Event | None = None) -> ZookeeperLease:
    return ZookeeperLease(lease_url, "shop", standby=standby, stop=stop or threading.Event())


def test_leases_of_two_jobs_are_independent(lease_url: ZookeeperUrl) -> None:
    stop = threading.Event()
    with lease(lease_url) as capture, ZookeeperLease(lease_url, "shop", standby=False, stop=stop, job="run") as run:
        assert becomes_true(20, lambda: capture.held() and run.held())
        second = ZookeeperLease(lease_url, "shop", standby=False, stop=stop, job="run")
        with pytest.raises(Fenced, match="source shop: another run leads"), second:
            pass


def candidates(server: ZookeeperServer, lease_url: ZookeeperUrl) -> list[str]:
    """Return the nodes of all captures that lead or are on standby."""
    client = server.client()
    try:
        names: list[str] = client.get_children(f"{lease_url.root}/shop/lease")
        return names
    finally:
        client.stop()


def test_lease_held_within_context_and_renewed(lease_url: ZookeeperUrl) -> None:
    one = lease(lease_url)
    assert not one.held()
    with one:
        until = time.monotonic() + 1.5 * SESSION
        while time.monotonic() < until:
            assert one.held() and one.lost() is None
            time.sleep(0.05)
    assert not one.held()
    began = time.monotonic()
    with lease(lease_url) as another:
        assert another.held()
    assert time.monotonic() - began < SESSION, "leaving the block must not wait for the session to expire"


def test_sources_have_separate_leases(lease_url: ZookeeperUrl) -> None:
    with lease(lease_url), ZookeeperLease(lease_url, "depot", standby=False, stop=threading.Event()) as other:
        assert other.held()


def test_lease_without_standby_is_rejected_naming_leader(lease_url: ZookeeperUrl) -> None:
    began = time.monotonic()
    with lease(lease_url), pytest.raises(Fenced) as rejected, lease(lease_url):
        pass
    assert rejected.value.what == f"source shop: another capture leads ({OTHER})"
    assert SESSION < time.monotonic() - began < 3 * SESSION


def test_standbys_lead_in_order_of_arrival(lease_url: ZookeeperUrl, server: ZookeeperServer) -> None:
    led, release = list[int](), threading.Event()

    def wait(number: int) -> None:
        with lease(lease_url, standby=True):
            led.append(number)
            release.wait(10)
            release.clear()

    threads = []
    with lease(lease_url):
        for number in range(3):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            assert becomes_true(10, lambda: len(candidates(server, lease_url)) == len(threads) + 1)
        assert led == []
    for count in range(1, 4):
        assert becomes_true(3 * SESSION, lambda: len(led) == count)  # noqa: B023
        time.sleep(SESSION / 2)
        assert len(led) == count
        release.set()
    for thread in threads:
        thread.join(10)
    assert led == [0, 1, 2]


def test_stopped_standby_does_not_lead(lease_url: ZookeeperUrl) -> None:
    stop = threading.Event()
    with lease(lease_url):
        threading.Timer(0.5, stop.set).start()
        with lease(lease_url, standby=True, stop=stop) as stopped:
            assert not stopped.held()
            assert stopped.lost() is None


def test_expired_session_loses_lease_for_good(lease_url: ZookeeperUrl, server: ZookeeperServer) -> None:
    with lease(lease_url) as one:
        server.end_session(one._session._client)
        assert becomes_true(SESSION, one.lost)
        assert one.lost() == "its ZooKeeper session has ended"
        assert not one.held()
        with lease(lease_url) as two:
            assert two.held()
        assert not one.held()


def test_lease_ends_before_session_without_answers(lease_url: ZookeeperUrl, server: ZookeeperServer) -> None:
    """The servers keep the session for its whole time-out after the last request, so no other capture leads yet."""
    with lease(lease_url) as one:
        server.signal(signal.SIGSTOP)
        try:
            assert becomes_true(SESSION, lambda: not one.held())
            assert one.lost() is None
        finally:
            server.signal(signal.SIGCONT)


@pytest.mark.slow
def test_lease_not_held_while_zookeeper_is_silent(tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path) as server:
        lease_url = ZookeeperUrl.parse(f"zookeeper://{server.hosts}/x?session_timeout={SESSION}")
        with lease(lease_url) as one:
            time.sleep(SESSION)
            began = time.monotonic()
            server.signal(signal.SIGSTOP)
            assert becomes_true(SESSION, lambda: not one.held())
            assert time.monotonic() - began <= 0.75 * SESSION
            assert one.lost() is None
            server.signal(signal.SIGCONT)
            assert becomes_true(SESSION, one.held)
            server.stop()
            assert becomes_true(4 * SESSION, one.lost)
            assert one.lost() == f"ZooKeeper has not answered for {3 * SESSION:.0f} s"


def test_lease_follows_granted_session_timeout(server: ZookeeperServer, tmp_path: Path) -> None:
    requested = 4 * server.longest
    lease_url = ZookeeperUrl.parse(f"zookeeper://{server.hosts}/requested?session_timeout={requested}")
    with lease(lease_url) as one:
        assert one._session.timeout == server.longest
        assert one._held_until - one._answered_at == pytest.approx(server.longest * 2 / 3)


def test_missing_zookeeper_is_retryable(tmp_path: Path) -> None:
    gone = ZookeeperServer(tmp_path).hosts
    lease_url = ZookeeperUrl.parse(f"zookeeper://{gone}/x?session_timeout=1")
    with pytest.raises(ProgressUnavailable, match="does not answer"), lease(lease_url, standby=True):
        pass
