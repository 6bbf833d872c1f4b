"""Membership of a group: what a member has to know of the others, and which partitions are whose.

Place: below ``group``; ``zookeeper.membership`` implements it. Guarantee: a partition has one owner at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Membership(Protocol):
    """A process's part in a group. All methods may raise ProgressUnavailable."""

    name: str

    def join(self) -> None:
        """Become a member; a lost membership begins again."""

    def members(self) -> Sequence[str]:
        """Return the members' names as known last, in order."""

    def held(self) -> bool:
        """Return False as soon as other members may take this one's partitions."""

    def lost(self) -> bool:
        """Return True if membership has ended: all partitions belong to others."""

    def is_settled(self) -> bool:
        """Return True once no listed member can have died before this one joined."""

    def acquire(self, partition: int) -> bool:
        """Take a partition; return False while another member owns it."""

    def release(self, partition: int) -> None:
        """Give a partition back; do nothing if another member owns it."""

    def leave(self) -> None:
        """End membership, and release everything."""


def assign(members: Sequence[str], partitions: int) -> dict[int, str]:
    """Return the member that each partition belongs to: evenly, the same for every process with the same members.

    >>> assign(["a", "b"], 3)
    {0: 'a', 1: 'b', 2: 'a'}
    """
    ordered = sorted(members)
    return {number: ordered[number % len(ordered)] for number in range(partitions)} if ordered else {}
