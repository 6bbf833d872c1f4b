"""A group's members, taking turns in one thread: leases that lapse, failures, rebalancing, and the end."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import Fenced, ProgressUnavailable, StateNotReady
from dblake.serve.consume.checkpoints import CheckpointStore
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from tests.support.consumers import TABLES, Shop, folded_shop

PARTITIONS = 4


class Store:
    """The checkpoint of one partition; opening it again fences who opened it before."""

    def __init__(self, saved: dict[int, str], openings: dict[int, int], number: int) -> None:
        self.where = f"partition {number}"
        self._saved, self._openings, self._number, self._mine = saved, openings, number, 0

    def open(self) -> str | None:
        self._openings[self._number] += 1
        self._mine = self._openings[self._number]
        return self._saved.get(self._number)

    def save(self, checkpoint: str) -> None:
        if self._openings[self._number] != self._mine:
            raise Fenced("another process uses the checkpoint")
        self._saved[self._number] = checkpoint

    def is_held(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Room:
    """What members know of each other: who they are, who owns what, and the checkpoints."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.members: list[str] = []
        self.owners: dict[int, str] = {}
        self.saved: dict[int, str] = {}
        self.openings: dict[int, int] = defaultdict(int)

    def enter(
        self, name: str, open_store: Callable[[int], CheckpointStore] | None = None, **settings: Any
    ) -> Member:
        """Return a member that is about to join."""
        how = SubscriptionSettings(poll_seconds=0, **settings)
        return Member(self, name, how, open_store or (lambda number: Store(self.saved, self.openings, number)))


class Member:
    """A membership, and the subscription with it.

    ``is_away`` is True while ZooKeeper does not answer, ``is_quiet`` if no other member may have died before.
    """

    def __init__(
        self, room: Room, name: str, settings: SubscriptionSettings, open_store: Callable[[int], CheckpointStore]
    ) -> None:
        self.name, self._room, self.is_away, self.is_quiet = name, room, False, True
        self.group = GroupSubscription(
            [room.shop.paths], settings, PARTITIONS, self, open_store, threading.Event()
        )

    def join(self) -> None:
        self._require_answer()
        self._room.members.append(self.name)

    def members(self) -> Sequence[str]:
        return self._room.members

    def held(self) -> bool:
        return True

    def lost(self) -> bool:
        return self.name not in self._room.members

    def is_settled(self) -> bool:
        return self.is_quiet

    def acquire(self, partition: int) -> bool:
        self._require_answer()
        return self._room.owners.setdefault(partition, self.name) == self.name

    def release(self, partition: int) -> None:
        self._require_answer()
        if self._room.owners.get(partition) == self.name:
            del self._room.owners[partition]

    def leave(self) -> None:
        self._room.members = [one for one in self._room.members if one != self.name]
        self._room.owners = {number: owner for number, owner in self._room.owners.items() if owner != self.name}

    def _require_answer(self) -> None:
        if self.is_away:
            raise ProgressUnavailable("ZooKeeper does not answer")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return folded_shop(tmp_path_factory.mktemp("shop"), 12, later=12)


def everything(shop: Shop) -> list[str]:
    """Return all events, sorted."""
    with shop.subscribe(start="1/0") as subscription:
        return sorted(line for one in subscription for line in describe([one]))


def describe(batch: Sequence[Transaction]) -> list[str]:
    return [f"{event.table} {event.position}" for one in batch for event in one.events]


def handle(group: GroupSubscription, number: int, batch: Sequence[Transaction]) -> list[str]:
    """Save a batch's checkpoint; return its events."""
    if batch:
        group.checkpoint(number, batch[-1])
        assert {one.partition for one in batch} == {number}
    return describe(batch)


def test_member_delivers_all_partitions_and_ends(shop: Shop) -> None:
    """Another run has nothing to deliver. A member that has left owns nothing."""
    room = Room(shop)
    for expected in (everything(shop), []):
        with room.enter("a", start="1/0", until_caught_up=True).group as group:
            assert sorted(e for number, batch in group.batches(3) for e in handle(group, number, batch)) == expected
        assert (room.members, room.owners) == ([], {})


def test_lapsed_lease_delivers_nothing_and_loses_nothing(shop: Shop) -> None:
    """ZooKeeper answers again within the session: what was read while the lease had lapsed is delivered then."""
    member = Room(shop).enter("a", start="1/0", until_caught_up=True)
    answers = cycle([True, True, False])
    member.held = lambda: next(answers)  # type: ignore[method-assign]
    with member.group as group:
        found = [e for number, batch in group.batches(1) for e in handle(group, number, batch)]
    assert sorted(found) == everything(shop)


def test_partition_rolled_back_comes_first(shop: Shop) -> None:
    """The batch that failed is the next one: no other partition is even asked before it."""
    handled: list[tuple[int, list[str]]] = []
    failed = 0
    with Room(shop).enter("a", start="1/0", until_caught_up=True).group as group:
        for number, batch in group.batches(3):
            handled.append((number, describe(batch)))
            if batch and handled.count(handled[-1]) == 1:
                group.rollback(number)
                failed += 1
            elif batch:
                assert handled[-2] == handled[-1]
                group.checkpoint(number, batch[-1])
    assert failed > PARTITIONS
    assert sorted(event for _, events in handled for event in events) == sorted(2 * everything(shop))


def test_members_share_partitions(shop: Shop) -> None:
    """A second member gets its share between two batches of the first, which takes it back when the second ends."""
    room, found = Room(shop), []
    with room.enter("a", start="1/0", until_caught_up=True).group as group:
        rounds = group.batches(3)
        found += handle(group, *next(rounds))
        assert room.owners == dict.fromkeys(range(PARTITIONS), "a")
        with room.enter("b", start="1/0", until_caught_up=True).group as other:
            found += handle(group, *next(rounds))
            assert room.owners == {0: "a", 2: "a"}
            for number, batch in other.batches(3):
                assert number in (1, 3)
                found += handle(other, number, batch)
            assert room.owners == {0: "a", 1: "b", 2: "a", 3: "b"}
        for number, batch in rounds:
            found += handle(group, number, batch)
        assert room.owners == dict.fromkeys(range(PARTITIONS), "a")
    assert sorted(found) == everything(shop)


def test_unsettled_member_does_not_end(shop: Shop) -> None:
    """A member that has died still owns partitions, one of this member's among them: they are delivered later."""
    room, found, numbers = Room(shop), [], []
    room.members, room.owners = ["0-dead"], dict.fromkeys((0, 1, 2), "0-dead")
    member = room.enter("a", start="1/0", until_caught_up=True)
    member.is_quiet = False
    with member.group as group:
        for number, batch in group.batches(3):
            found += handle(group, number, batch)
            if batch:
                continue
            numbers.append(number)
            if numbers == [3, 3]:
                del room.owners[1]
            if numbers == [3, 3, 1, 3, 1, 3]:
                room.members, room.owners, member.is_quiet = ["a"], {1: "a", 3: "a"}, True
            assert len(numbers) < 11
    assert sorted(found) == everything(shop)


def test_failure_while_reading_loses_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before the failure, and not delivered, is read again."""
    poll = Subscription.poll

    def fail_once(subscription: Subscription) -> Iterator[Transaction]:
        for transaction in poll(subscription):
            yield transaction
            if transaction.events:
                monkeypatch.undo()
                raise StateNotReady("a file cannot be read")

    monkeypatch.setattr(Subscription, "poll", fail_once)
    found: list[str] = []
    with Room(shop).enter("a", start="1/0").group as group:
        for number, batch in group.batches(1000):
            found += handle(group, number, batch)
            if number == PARTITIONS - 1 and not batch:
                break
    assert sorted(found) == everything(shop)


def test_checkpoint_fenced_by_new_owner_is_refused(shop: Shop) -> None:
    room = Room(shop)
    with room.enter("a", start="1/0").group as group:
        number, batch = next((n, b) for n, b in group.batches(3) if b)
        Store(room.saved, room.openings, number).open()
        assert not group.checkpoint(number, batch[-1])
        assert number not in group.owned and number not in room.saved
        assert not group.save_idle(number)


def test_unreachable_zookeeper_ends_bounded_member_only(shop: Shop) -> None:
    """A continuous member waits; one that ends when caught up raises, so that its scheduler repeats it."""
    for is_bounded in (True, False):
        room = Room(shop)
        member = room.enter("a", start="1/0", until_caught_up=is_bounded)
        with member.group as group:
            member.is_away = True
            rounds = group.batches(3)
            if is_bounded:
                with pytest.raises(ProgressUnavailable):
                    next(rounds)
                continue
            timer = threading.Timer(0.2, setattr, (member, "is_away", False))
            timer.start()
            assert describe(next(batch for _, batch in rounds if batch))
            timer.join()


def test_partition_given_away_after_failure_is_released(shop: Shop) -> None:
    """Its checkpoint cannot be read; when ZooKeeper answers again, the partition belongs to a new member."""
    room = Room(shop)

    def fail(number: int) -> CheckpointStore:
        if number != 1 or "b" in room.members:
            return Store(room.saved, room.openings, number)
        room.members.append("b")
        raise ProgressUnavailable("ZooKeeper does not answer")

    with room.enter("a", fail, start="1/0").group as group:
        next(group.batches(3))
        assert room.owners == {0: "a", 2: "a"}


def test_control_entries_name_partition(tmp_path: Path) -> None:
    """A consumer of bootstrap_started removes the rows of that partition only."""
    shop = Shop(tmp_path)
    shop.land(*TABLES)
    shop.reconcile()
    member = Room(shop).enter("a", until_caught_up=True)
    with member.group as group, pytest.raises(StateNotReady):
        next(group.batches(3))
    shop.fold()
    with Room(shop).enter("a", until_caught_up=True).group as group:
        controls = [one.control for _, batch in group.batches(3) for one in batch if one.control]
    started = [one.details["partition"] for one in controls if one.kind is ControlKind.BOOTSTRAP_STARTED]
    assert started == [{"by": "hash", "of": PARTITIONS, "take": (number,)} for number in range(PARTITIONS)]
