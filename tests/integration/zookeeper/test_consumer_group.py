"""Consumer groups through a real ZooKeeper: members join, leave, crash and freeze; nothing is lost or owned twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError, Fenced
from dblake.base.core.position import Position
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.serve.consume.api import open_group
from dblake.serve.consume.checkpoints import CheckpointStore, open_store
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.membership import assign
from dblake.serve.consume.model import Event
from dblake.serve.consume.zookeeper.checkpoint import ZookeeperCheckpoint
from dblake.serve.consume.zookeeper.membership import ZookeeperMembership
from tests.support.consumers import Shop
from tests.support.zookeeper import ZookeeperServer

PARTITIONS = 8


class Log:
    """What all members handled, and every moment at which two of them handled one partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self.events: dict[tuple[str, str], list[Position]] = defaultdict(list)
        self.owners: dict[int, set[str]] = defaultdict(set)
        self.doubly_owned: list[int] = []

    @contextmanager
    def handling(self, number: int, member: str) -> Iterator[None]:
        with self._lock:
            self.doubly_owned += [number] if number in self._busy else []
            self._busy.add(number)
            self.owners[number].add(member)
        yield
        with self._lock:
            self._busy.discard(number)

    def note(self, event: Event) -> None:
        with self._lock:
            self.events[event.table, str((event.key or {}).get("id"))].append(event.position)

    @property
    def count(self) -> int:
        """Return the number of different events."""
        with self._lock:
            return len({position for positions in self.events.values() for position in positions})


class Member:
    """One member, in a thread."""

    def __init__(self, shop: Shop, url: str, log: Log) -> None:
        self._stop, self._log, self._is_dead = threading.Event(), log, False
        self.group: GroupSubscription = open_group(
            [shop.paths], group=url, partitions=PARTITIONS, start="1/0", stop=self._stop
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def membership(self) -> ZookeeperMembership:
        assert isinstance(self.group._membership, ZookeeperMembership)
        return self.group._membership

    def _run(self) -> None:
        self.group.__enter__()
        for number, transaction in self.group:
            if self._is_dead:
                return
            with self._log.handling(number, self.membership.name):
                for event in transaction.events:
                    self._log.note(event)
                time.sleep(0.002)
            self.group.checkpoint(number, transaction)
        if not self._is_dead:
            self.group.__exit__(None, None, None)

    def leave(self) -> None:
        """End regularly."""
        self._stop.set()
        self._thread.join(20)

    def crash(self, server: ZookeeperServer) -> None:
        """End without releasing anything; the server then expires the session."""
        self._is_dead = True
        self._stop.set()
        self._thread.join(20)
        self.membership._closed.set()
        server.end_session(self.membership._session._client)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the members have not come that far"
        time.sleep(0.05)


def count_events(shop: Shop) -> int:
    with shop.subscribe(start="1/0") as subscription:
        return sum(len(one.events) for one in subscription)


def test_group_handles_every_event_in_order(
    tmp_path: Path, zookeeper: ZookeeperServer, zookeeper_url: str
) -> None:
    """Three members; one joins, one crashes, one leaves, while transactions arrive."""
    shop, log = Shop(tmp_path), Log()
    stages = iter([100, 250, 400, 550])

    def arrive() -> int:
        shop.move(60)
        shop.land()
        shop.reconcile()
        return next(stages)

    arrive()
    members = [Member(shop, zookeeper_url, log) for _ in range(3)]
    wait_until(lambda: log.count > 90)
    members.append(Member(shop, zookeeper_url, log))
    arrive()
    wait_until(lambda: log.count > 200)
    members.pop(0).crash(zookeeper)
    arrive()
    wait_until(lambda: log.count > 320)
    members.pop(0).leave()
    arrive()
    with shop.subscribe(start="1/0") as subscription:
        expected = [event for one in subscription for event in one.events]
    wait_until(lambda: log.count == len(expected))
    for member in members:
        member.leave()

    assert log.doubly_owned == []
    assert len(set.union(*log.owners.values())) == 4
    assert max(len(owners) for owners in log.owners.values()) > 1
    for (table, key), positions in log.events.items():
        wanted = [event.position for event in expected if (event.table, (event.key or {}).get("id")) == (table, key)]
        assert list(dict.fromkeys(positions)) == wanted


def test_member_without_session_owns_nothing(tmp_path: Path, zookeeper: ZookeeperServer, zookeeper_url: str) -> None:
    """A member whose session expired without its knowledge joins again; what it saved late is rejected."""
    shop, log = Shop(tmp_path), Log()
    shop.move(20)
    shop.land()
    shop.reconcile()
    member = Member(shop, zookeeper_url, log)
    wait_until(lambda: log.count == count_events(shop))
    zookeeper.end_session(member.membership._session._client)
    wait_until(lambda: member.membership.lost() or len(member.group.owned) == PARTITIONS)
    shop.move(20)
    shop.land()
    shop.reconcile()
    wait_until(lambda: log.count == count_events(shop))
    member.leave()
    assert log.doubly_owned == []


def test_release_leaves_partition_of_new_owner(zookeeper: ZookeeperServer, zookeeper_url: str) -> None:
    """A member that does not know yet that its session has ended gives back what is another's by now."""
    first, second = (ZookeeperMembership(ZookeeperUrl.parse(zookeeper_url)) for _ in range(2))
    for member in (first, second):
        member.join()
    assert first.acquire(0) and first.acquire(1) and not second.acquire(0)
    first.release(1)
    assert second.acquire(1)
    zookeeper.end_session(first._session._client)
    wait_until(lambda: second.acquire(0))
    first.release(0)
    assert not first.acquire(0)
    second.release(0)
    assert first.acquire(0)
    for member in (first, second):
        member.release(0)
        assert not second.acquire(0)
    for member in (first, second):
        member.leave()


def test_member_is_settled_when_alone_or_after_sessions_end(zookeeper_url: str) -> None:
    """A member that died before this one joined is not listed any more."""
    first, second = (ZookeeperMembership(ZookeeperUrl.parse(zookeeper_url)) for _ in range(2))
    first.join()
    assert first.is_settled()
    joined = time.monotonic()
    second.join()
    assert not second.is_settled()
    wait_until(second.is_settled)
    assert time.monotonic() - joined > 4
    for member in (first, second):
        member.leave()


def test_group_checkpoint_fences_previous_owner(zookeeper_url: str) -> None:
    server = ZookeeperUrl.parse(zookeeper_url)
    first, second = (ZookeeperCheckpoint(server) for _ in range(2))
    assert first.open() is None
    first.save("a")
    assert second.open() == "a"
    with pytest.raises(Fenced):
        first.save("b")
    second.save("c")
    for store in (first, second):
        store.close()


def test_checkpoint_in_zookeeper_is_leased_to_one_process(zookeeper_url: str) -> None:
    """A second process is rejected when it opens it, before it has effects."""
    first, second = open_store(zookeeper_url), open_store(zookeeper_url)
    assert first.open() is None
    with pytest.raises(Fenced, match="another process uses the checkpoint"):
        second.open()
    assert first.is_held()
    first.save("c")
    first.close()
    assert second.open() == "c"
    second.close()


def test_standby_opens_checkpoint_when_its_holder_ends(zookeeper_url: str) -> None:
    """Of two that stand by, one is asked to stop; it holds nothing."""
    leader, ended = open_store(zookeeper_url), threading.Event()
    leader.open()
    leader.save("c")
    stops = threading.Event(), threading.Event()
    standbys = [open_store(zookeeper_url, stop) for stop in stops]
    opened: dict[int, str | None] = {}

    def stand_by(number: int) -> None:
        opened[number] = standbys[number].open()
        ended.set()

    threads = [threading.Thread(target=stand_by, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    assert not ended.wait(2)
    stops[0].set()
    threads[0].join(30)
    assert opened == {0: None}
    leader.close()
    threads[1].join(30)
    assert opened == {0: None, 1: "c"}
    assert standbys[1].is_held()
    standbys[1].save("d")
    standbys[1].close()


@pytest.mark.slow
def test_lease_of_killed_process_is_waited_for(zookeeper: ZookeeperServer, zookeeper_url: str) -> None:
    server = ZookeeperUrl.parse(zookeeper_url)
    lease = ZookeeperMembership(replace(server, root=f"{server.root}/lease"))
    second = ZookeeperCheckpoint(server, lease)
    opened = f"o({zookeeper_url!r}).open(); print(1); input()"
    script = f"from dblake.serve.consume.checkpoints import open_store as o; {opened}"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ),
    ) as killed:
        assert killed.stdout is not None and killed.stdout.readline()
        killed.kill()
    assert second.open() is None
    second.save("d")
    zookeeper.end_session(lease._session._client)
    wait_until(lambda: _is_fenced(second))
    second.close()


def _is_fenced(store: CheckpointStore) -> bool:
    try:
        store.is_held()
    except Fenced:
        return True
    return False


def test_unparsable_checkpoint_url_is_rejected() -> None:
    with pytest.raises(ConfigError):
        open_store("zookeeper://nowhere")


def test_assignment_is_even_and_equal_for_all() -> None:
    assert assign(["b", "a"], 5) == assign(["a", "b"], 5) == {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
    assert assign([], 3) == {}
