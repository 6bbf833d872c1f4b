"""The lease in ZooKeeper: who leads, for how long that is sure, and how it ends. Against a real server."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblake.capture.zookeeper.lease import ZookeeperLease
from dblake.core.errors import Fenced, LandingUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl
from tests.support.zookeeper import ZookeeperServer

SESSION = 2.0
OTHER = f"process {os.getpid()} on {socket.gethostname()}"


def within(seconds: float, true: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("leases")) as server:
        yield server


@pytest.fixture
def where(server: ZookeeperServer, tmp_path: Path) -> ZookeeperUrl:
    name = tmp_path.name.replace("[", "-").replace("]", "-")
    return ZookeeperUrl.parse(f"zookeeper://{server.hosts}/{name}?session_timeout={SESSION}")


def lease(where: ZookeeperUrl, *, standby: bool = False, stop: threading.Event | None = None) -> ZookeeperLease:
    return ZookeeperLease(where, "shop", standby=standby, stop=stop or threading.Event())


def test_it_is_held_inside_its_block_only_and_for_longer_than_a_session(where: ZookeeperUrl) -> None:
    one = lease(where)
    assert not one.held()
    with one:
        until = time.monotonic() + 1.5 * SESSION
        while time.monotonic() < until:
            assert one.held() and one.lost() is None
            time.sleep(0.05)
    assert not one.held()
    began = time.monotonic()
    with lease(where) as another:
        assert another.held()
    assert time.monotonic() - began < SESSION, "an end that was meant needs no session to run out"


def test_sources_have_leases_of_their_own(where: ZookeeperUrl) -> None:
    with lease(where), ZookeeperLease(where, "depot", standby=False, stop=threading.Event()) as other:
        assert other.held()


def test_who_does_not_stand_by_is_refused_after_a_session_and_told_by_whom(where: ZookeeperUrl) -> None:
    began = time.monotonic()
    with lease(where), pytest.raises(Fenced) as refused, lease(where):
        pass
    assert refused.value.what == f"source shop: another capture leads ({OTHER})"
    assert SESSION < time.monotonic() - began < 3 * SESSION


def test_those_who_stand_by_lead_one_after_the_other_in_the_order_they_came(where: ZookeeperUrl) -> None:
    led, go_on = list[int](), threading.Event()

    def wait(number: int) -> None:
        with lease(where, standby=True):
            led.append(number)
            go_on.wait(10)
            go_on.clear()

    threads = []
    with lease(where):
        for number in range(3):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            time.sleep(0.5)
        assert led == []
    for count in range(1, 4):
        assert within(3 * SESSION, lambda: len(led) == count)  # noqa: B023
        time.sleep(SESSION / 2)
        assert len(led) == count
        go_on.set()
    for thread in threads:
        thread.join(10)
    assert led == [0, 1, 2]


def test_who_stands_by_and_is_asked_to_end_does_not_lead(where: ZookeeperUrl) -> None:
    stop = threading.Event()
    with lease(where):
        threading.Timer(0.5, stop.set).start()
        with lease(where, standby=True, stop=stop) as asked:
            assert not asked.held()
            assert asked.lost() is None


def test_a_session_that_ended_is_a_lease_lost_for_good(where: ZookeeperUrl, server: ZookeeperServer) -> None:
    with lease(where) as one:
        server.end_session(one._session._client)
        assert within(SESSION, one.lost)
        assert one.lost() == "its ZooKeeper session has ended"
        assert not one.held()
        with lease(where) as two:
            assert two.held()
        assert not one.held()


def test_without_answers_it_is_unsure_before_the_session_can_end_and_sure_again_with_them(tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path) as server:
        where = ZookeeperUrl.parse(f"zookeeper://{server.hosts}/x?session_timeout={SESSION}")
        with lease(where) as one:
            time.sleep(SESSION)
            began = time.monotonic()
            server.signal(signal.SIGSTOP)
            assert within(SESSION, lambda: not one.held())
            assert time.monotonic() - began <= 0.75 * SESSION
            assert one.lost() is None
            server.signal(signal.SIGCONT)
            assert within(SESSION, one.held)
            server.stop()
            assert within(4 * SESSION, one.lost)
            assert one.lost() == f"ZooKeeper has not answered for {3 * SESSION:.0f} s"


def test_the_servers_word_counts_for_how_long_a_session_lasts(server: ZookeeperServer, tmp_path: Path) -> None:
    wished = 4 * server.longest
    where = ZookeeperUrl.parse(f"zookeeper://{server.hosts}/wished?session_timeout={wished}")
    with lease(where) as one:
        assert one._session.timeout == server.longest
        assert one._sure_until - one._answered == pytest.approx(server.longest * 2 / 3)


def test_a_zookeeper_that_is_not_there_is_worth_another_try(tmp_path: Path) -> None:
    gone = ZookeeperServer(tmp_path).hosts
    where = ZookeeperUrl.parse(f"zookeeper://{gone}/x?session_timeout=1")
    with pytest.raises(LandingUnavailable, match="does not answer"), lease(where, standby=True):
        pass
