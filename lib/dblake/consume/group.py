"""Consumer groups: several processes share the key partitions of a subscription.

Place: on ``subscription``; ``membership`` is the group. Guarantee: a partition's rows come in order. An owner releases
a partition between two transactions; the next one continues from its checkpoint, so nothing is lost, and what was
delivered since comes again. An owner that was frozen or cut off delivers nothing once its lease has run out, and cannot
save a checkpoint after another process has taken over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from dblake.consume.checkpoints import CheckpointStore
from dblake.consume.membership import Membership, assign
from dblake.consume.model import Transaction
from dblake.consume.partition import Partition
from dblake.consume.subscription import Subscription, SubscriptionSettings
from dblake.core.errors import DblakeError, Fenced
from dblake.lake.layout import Paths

logger = logging.getLogger(__name__)


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
        self._owned: dict[int, Subscription] = {}

    def __enter__(self) -> Self:
        """Join the group."""
        self._membership.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_all()
        self._membership.leave()

    @property
    def owned(self) -> Sequence[int]:
        """The partitions that this member owns."""
        return sorted(self._owned)

    def __iter__(self) -> Iterator[tuple[int, Transaction]]:
        """Yield the transactions of the partitions that this member owns, until ``stop`` is set."""
        while not self._stop.is_set():
            is_idle = True
            try:
                self._rebalance()
                for number in self.owned:
                    for transaction in self._owned[number].poll():
                        if not self._membership.held():
                            break
                        is_idle = False
                        yield number, transaction
                        if self._stop.is_set() or number not in self._owned or self._is_outdated():
                            break
            except DblakeError as error:
                if not error.retryable:
                    raise
                logger.warning("group member %s: %s", self._membership.name, error.what)
                # What was read ahead is read again.
                self._drop_all(release=not self._membership.lost())
            if is_idle:
                self._stop.wait(self._settings.poll_seconds)

    def checkpoint(self, partition: int, transaction: Transaction) -> bool:
        """Save the point after a transaction; return False if the partition now belongs to another member.

        The other member then delivers the transaction again.
        """
        subscription = self._owned.get(partition)
        if subscription is None:
            return False
        try:
            subscription.checkpoint(transaction)
        except Fenced:
            self._drop(partition)
            return False
        return True

    def _is_outdated(self) -> bool:
        """Return True if this member owns a partition that is another's now."""
        mine = self._assigned()
        return self._membership.lost() or not set(self._owned) <= mine

    def _assigned(self) -> set[int]:
        wanted = assign(self._membership.members(), self._partitions)
        return {number for number, member in wanted.items() if member == self._membership.name}

    def _rebalance(self) -> None:
        """Release partitions that belong to others, and take those that belong to this member."""
        if self._membership.lost():
            self._drop_all()
            self._membership.join()
        mine = self._assigned()
        for number in self.owned:
            if number not in mine:
                self._drop(number)
                self._membership.release(number)
                logger.info("group member %s releases partition %d", self._membership.name, number)
        for number in sorted(mine.difference(self._owned)):
            if self._membership.acquire(number):
                self._owned[number] = self._open(number)
                logger.info("group member %s owns partition %d", self._membership.name, number)

    def _open(self, number: int) -> Subscription:
        partition = Partition("hash", self._partitions, (number,))
        selection = replace(self._settings.selection, partition=partition)
        subscription = Subscription(
            self._sources, replace(self._settings, selection=selection), self._open_store(number), self._stop
        )
        try:
            return subscription.__enter__()
        except BaseException:
            self._membership.release(number)
            raise

    def _drop(self, number: int) -> None:
        self._owned.pop(number).close()

    def _drop_all(self, *, release: bool = False) -> None:
        for number in self.owned:
            self._drop(number)
            if release:
                self._membership.release(number)
