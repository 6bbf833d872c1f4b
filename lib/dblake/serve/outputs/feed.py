"""What delivery follows: a subscription, or one member's partitions of a group.

Place: between ``consume`` and ``delivery``, which has one loop for both. Guarantee: a batch of a group is of one
partition, and a checkpoint or a rollback concerns the partition of the newest batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from dblake.base.core.errors import ProgressUnavailable
from dblake.base.core.position import Position
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.model import Transaction


class Feed(Protocol):
    """Transactions in batches, and the checkpoint behind them; ``Subscription`` is one. Use it in a ``with`` block."""

    def __enter__(self) -> Self:
        """Open the feed at its checkpoint."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what the feed holds."""

    def batches(self, max_events: int) -> Iterator[Sequence[Transaction]]:
        """Yield lists of about ``max_events`` events; one is empty when nothing came."""

    def is_held(self) -> bool:
        """Return False as soon as another process may deliver the newest batch."""

    def checkpoint(self, transaction: Transaction) -> str:
        """Save the point after a transaction of the newest batch; return it as text."""

    def save_idle(self) -> None:
        """Save the point after an empty batch if nothing was saved for a while."""

    def expired(self) -> Mapping[str, Position]:
        """Return by source the position up to which no event can be delivered again; see ``Subscription.expired``."""

    def rollback(self, checkpoint: str | None = None) -> None:
        """Go back to the last checkpoint, or to a given one."""


def require_lease(is_held: Callable[[], bool]) -> None:
    """Raise ProgressUnavailable unless this process holds what it delivers."""
    if not is_held():
        raise ProgressUnavailable(
            "the lease in ZooKeeper has run out, so another process may deliver the same rows",
            next_step="check that ZooKeeper is reachable; raise `session_timeout` if this recurs",
        )


class GroupFeed:
    """The partitions of a group's member as a Feed."""

    def __init__(self, group: GroupSubscription) -> None:
        self._group = group
        self._partition = -1

    def __enter__(self) -> Self:
        """Join the group in ZooKeeper."""
        self._group.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.__exit__(kind, error, trace)

    def batches(self, max_events: int) -> Iterator[Sequence[Transaction]]:
        """Yield the batches of one partition after another; see Feed."""
        for partition, batch in self._group.batches(max_events):
            self._partition = partition
            yield batch

    def is_held(self) -> bool:
        """Return whether the member's lease is valid; see Feed."""
        return self._group.is_held()

    def checkpoint(self, transaction: Transaction) -> str:
        """Save the partition's point, unless it is another member's now, who delivers again; see Feed."""
        self._group.checkpoint(self._partition, transaction)
        return transaction.checkpoint

    def save_idle(self) -> None:
        """Save the partition's point; see Feed."""
        self._group.save_idle(self._partition)

    def expired(self) -> Mapping[str, Position]:
        """Return nothing: outputs of a group hold no checkpoint, and so no rows by position; see Feed."""
        return {}

    def rollback(self, checkpoint: str | None = None) -> None:  # noqa: ARG002 - outputs of a group hold none
        """Go back to the partition's last checkpoint; see Feed."""
        self._group.rollback(self._partition)
