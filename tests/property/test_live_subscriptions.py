"""A subscription delivers the same from landing's tail as from events, wherever both are and wherever it is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dblake.serve.consume.cursor import read_cursor
from dblake.serve.consume.model import Transaction
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.transform.reconcile.reconciler import Reconciler
from tests.support.effort import EFFORT
from tests.support.histories import MOVED_SEEDS
from tests.support.readings import SOURCE, HistoryLake

LENGTH = 400
REMOVING = ((144, 200), (261, 300), (153, 120), (229, 200), (299, 200))
"""Histories, by seed and length, with a dump that removes rows: wrong if its end does not wait for events."""
HISTORIES = [
    *REMOVING[:2], (0, LENGTH),
    *(pytest.param(*history, marks=pytest.mark.slow) for history in (
        *REMOVING[2:], *((seed, LENGTH) for seed in (*range(1, 20 * EFFORT), *MOVED_SEEDS)),
    )),
]


def without_spark() -> NoReturn:
    raise AssertionError("these histories are small")


def describe(transaction: Transaction) -> list[Any]:
    """Return all that a consumer sees of a transaction or control entry."""
    control = transaction.control and asdict(transaction.control)
    events = [
        {name: getattr(event, name) for name in event.__slots__ if name != "schema"} for event in transaction.events
    ]
    return [str(transaction.position), transaction.committed_at, control, events]


class Consumer:
    """Follows a history's lake, mostly live, and is killed at random; ``seen`` is what came, once."""

    def __init__(self, lake: HistoryLake, draw: random.Random) -> None:
        self._lake, self._draw, self._checkpoint = lake, draw, ""
        self._kept = self.ahead = 0
        self.seen: list[list[Any]] = []
        self._open()

    def _open(self) -> None:
        del self.seen[self._kept :]
        settings = SubscriptionSettings(
            start="1/0", checkpoint=self._checkpoint or None, live=self._draw.random() < 0.8
        )
        self._subscription = Subscription([self._lake.paths], settings).__enter__()

    def poll(self, done: int) -> None:
        """Take what there is, or die on the way; ``done`` is the newest batch in events."""
        for transaction in self._subscription.poll():
            self.seen.append(describe(transaction))
            cursor = read_cursor(transaction.checkpoint, SOURCE, "memory")
            self.ahead += cursor is not None and cursor.reached > done
            if self._draw.random() < 0.3:
                self._checkpoint, self._kept = transaction.checkpoint, len(self.seen)
            if self._draw.random() < 0.05:
                return self._open()
        if self._draw.random() < 0.5:
            self._checkpoint, self._kept = self._subscription.checkpoint(), len(self.seen)


def moments(draw: random.Random, last: int) -> Iterator[tuple[int, int]]:
    """Yield how far landing and events are, until both have all batches."""
    landed = done = 1
    while done < last:
        yield landed, done
        landed = min(landed + draw.randint(0, 3), last)
        done = draw.choice([done, done, draw.randint(done, landed)])
    yield last, last


@pytest.mark.parametrize(("seed", "length"), HISTORIES)
def test_live_delivery_equals_delivery_of_events(tmp_path: Path, seed: int, length: int) -> None:
    draw, lake = random.Random(seed), HistoryLake(tmp_path, seed, length)
    consumer: Consumer | None = None
    reconciler: Reconciler | None = None
    before = 0
    for landed, done in moments(draw, lake.last_batch):
        lake.land(landed)
        if consumer and draw.random() < 0.7:
            consumer.poll(before)
        before = done
        if reconciler is None:
            reconciler = Reconciler(without_spark, lake.paths)
            reconciler.catch_up()
        reconciler.reconcile(done)
        consumer = consumer or Consumer(lake, draw)
        consumer.poll(done)
    assert consumer is not None
    for _ in range(3):
        consumer.poll(lake.last_batch)
    settings = SubscriptionSettings(start="1/0", until_caught_up=True, live=False)
    with Subscription([lake.paths], settings) as settled:
        assert consumer.seen == [describe(transaction) for transaction in settled], f"seed {seed}"
    assert consumer.ahead or lake.last_batch < 5, "nothing was delivered before it was in events"
