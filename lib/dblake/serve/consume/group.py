"""Consumer groups: several processes share the key partitions of a subscription.

Place: on ``subscription``; ``membership`` is the group. Guarantee: a partition's rows come in order. An owner releases
a partition between two batches; the next one continues from its checkpoint, so nothing is lost, and what was delivered
since comes again. An owner that was frozen or cut off delivers nothing once its lease has run out, and cannot save a
checkpoint after another process has taken over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from dblake.base.core.errors import DblakeError, Fenced
from dblake.base.lake.layout import Paths
from dblake.serve.consume.checkpoints import CheckpointStore
from dblake.serve.consume.membership import Membership, assign
from dblake.serve.consume.model import Transaction
from dblake.serve.consume.subscription import (
    WARN_SECONDS,
    Subscription,
    SubscriptionSettings,
    divide,
    wait_for_next,
)

logger = logging.getLogger(__name__)

PartitionBatch = tuple[int, list[Transaction]]
"""A partition's number, and transactions of it."""


class GroupSubscription:
    """One member's part of a subscription: iterate over it inside its ``with`` block, in one thread.

    It yields a partition's number with each transaction. All members have the same settings and number of partitions.
    """

    def __init__(
        self, sources: Sequence[Paths], settings: SubscriptionSettings, partitions: int, membership: Membership,
        open_store: Callable[[int], CheckpointStore], stop: threading.Event,
    ) -> None:
        """``open_store`` returns the checkpoint store of a partition, which fences its previous owner."""
        self._sources, self._settings, self._partitions = sources, settings, partitions
        self._membership, self._open_store, self._stop = membership, open_store, stop
        self._taken: set[int] = set()
        """Partitions that this member may own in the group; those that it reads are a part of them."""
        self._owned: dict[int, Subscription] = {}
        self._failed: int | None = None
        """The partition that was rolled back last, until something is delivered."""

    def __enter__(self) -> Self:
        """Join the group in ZooKeeper."""
        try:
            self._membership.join()
        except BaseException:
            self._membership.leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_all()
        self._membership.leave()

    @property
    def owned(self) -> Sequence[int]:
        """The partitions that this member owns; another thread may ask."""
        # A copy that no change of the dictionary interrupts.
        return sorted(self._owned.copy())

    def __iter__(self) -> Iterator[tuple[int, Transaction]]:
        """Yield the transactions of the partitions that this member owns, as ``batches`` does."""
        return ((number, transaction) for number, batch in self.batches(1) for transaction in batch)

    def batches(self, max_events: int) -> Iterator[PartitionBatch]:
        """Yield transactions of one partition after another, in lists of about ``max_events`` events.

        A list is empty when its partition has no more now: a chance to save its checkpoint. Ends when ``stop`` is set
        or, with ``until_caught_up``, once everything is delivered of all partitions that are this member's.
        """
        warned_at = -WARN_SECONDS
        while not self._stop.is_set():
            try:
                self._rebalance()
                is_complete = yield from self._read_all(max_events)
                if is_complete and self._settings.until_caught_up and self._is_settled():
                    return
            except DblakeError as error:
                if not error.retryable or self._settings.until_caught_up:
                    raise
                if time.monotonic() - warned_at >= WARN_SECONDS:
                    logger.warning("group member %s: %s; waiting", self._membership.name, error.what)
                    warned_at = time.monotonic()
            wait_for_next(self._stop, self._settings.poll_seconds, self._has_next)

    def is_held(self) -> bool:
        """Return False as soon as other members may deliver what this one owns."""
        return self._membership.held()

    def checkpoint(self, partition: int, transaction: Transaction) -> bool:
        """Save the point after a transaction; return False if the partition now belongs to another member.

        The other member then delivers the transaction again.
        """
        return self._save(partition, lambda subscription: subscription.checkpoint(transaction))

    def save_idle(self, partition: int) -> bool:
        """Save the point after everything delivered of a partition, as ``Subscription.save_idle``."""
        return self._save(partition, lambda subscription: subscription.save_idle())

    def rollback(self, partition: int) -> None:
        """Go back to a partition's last checkpoint: the transactions after it come next, before other partitions'."""
        if partition in self._owned:
            self._owned[partition].rollback()
            self._failed = partition

    def _has_next(self) -> bool:
        return any(subscription.has_next() for subscription in self._owned.values())

    def _read_all(self, max_events: int) -> Generator[PartitionBatch, None, bool]:
        """Yield what the partitions have now; return True if all of it was delivered."""
        for number in sorted(self.owned, key=lambda number: number != self._failed):
            if not (yield from self._read(number, max_events)):
                return False
        return True

    def _read(self, number: int, max_events: int) -> Generator[PartitionBatch, None, bool]:
        subscription = self._owned[number]
        try:
            for batch in divide(subscription.poll(), max_events):
                if not self._membership.held():
                    # What was read ahead is read again.
                    subscription.rollback()
                    return False
                for transaction in batch:
                    transaction.partition = number
                self._failed = None
                yield number, batch
                if self._failed is not None or number not in self._owned or self._stop.is_set() or self._is_outdated():
                    return False
        except DblakeError:
            subscription.rollback()
            raise
        yield number, []
        return True

    def _save(self, partition: int, save: Callable[[Subscription], object]) -> bool:
        subscription = self._owned.get(partition)
        if subscription is None:
            return False
        try:
            save(subscription)
        except Fenced:
            self._close(partition)
            return False
        return True

    def _is_outdated(self) -> bool:
        """Return True if this member owns a partition that is another's now."""
        return self._membership.lost() or not set(self._owned) <= self._assigned()

    def _is_settled(self) -> bool:
        """Return True if this member owns what is its own among living members."""
        return not self._membership.lost() and set(self._owned) == self._assigned() and self._membership.is_settled()

    def _assigned(self) -> set[int]:
        wanted = assign(self._membership.members(), self._partitions)
        return {number for number, member in wanted.items() if member == self._membership.name}

    def _rebalance(self) -> None:
        """Release partitions that belong to others, and take those that belong to this member."""
        if self._membership.lost():
            self._close_all()
            self._taken.clear()
            self._membership.join()
        mine = self._assigned()
        for number in sorted(self._taken - mine):
            self._close(number)
            self._membership.release(number)
            self._taken.discard(number)
            logger.info("group member %s releases partition %d", self._membership.name, number)
        for number in sorted(mine.difference(self._owned)):
            # First: the response to a request that succeeds may be lost.
            self._taken.add(number)
            if not self._membership.acquire(number):
                self._taken.discard(number)
                continue
            self._owned[number] = self._open(number)
            logger.info("group member %s owns partition %d", self._membership.name, number)

    def _open(self, number: int) -> Subscription:
        settings = replace(self._settings, selection=self._settings.selection.of_partition(self._partitions, number))
        return Subscription(self._sources, settings, self._open_store(number), self._stop).__enter__()

    def _close(self, number: int) -> None:
        if number in self._owned:
            self._owned.pop(number).close()

    def _close_all(self) -> None:
        for number in self.owned:
            self._close(number)
