"""The position of an event in the order of history.

A position is ``(incarnation, lsn, seq)``, compared as numbers. ``incarnation`` counts the lives of the log: it rises
when a server is replaced, a timeline forks or a log is reset, so that numbers of two lives are never compared.
``lsn`` identifies a transaction by its place in commit order, ``seq`` orders the rows within it. No two events share
a position. What the numbers are made of is for each source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in the log; a later one compares greater. Raises ValueError for negative numbers or incarnation 0."""

    COLUMNS: ClassVar = ("incarnation", "lsn", "seq")
    """The parts' names in landing and events."""
    STATE_COLUMNS: ClassVar = ("_incarnation", "_lsn", "_seq")
    """The parts' names in state tables and at targets."""
    MAX: ClassVar = 2**62
    """A number after those of all parts."""
    LAST: ClassVar[Position]
    """A position after all others."""

    incarnation: int
    lsn: int
    seq: int = 0

    def __post_init__(self) -> None:
        if self.incarnation < 1 or self.lsn < 0 or self.seq < 0:
            raise ValueError(f"no such position: {self.incarnation}/{self.lsn}/{self.seq}")

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.lsn}/{self.seq}"

    @property
    def end_of_transaction(self) -> Position:
        """A position after all events of this one's transaction."""
        return Position(self.incarnation, self.lsn, self.MAX)

    @property
    def end_of_previous_transaction(self) -> Position:
        """A position after the events of all earlier transactions, and before the events of this one's."""
        if self.lsn == 0:
            return Position(max(self.incarnation - 1, 1), self.MAX if self.incarnation > 1 else 0, self.MAX)
        return Position(self.incarnation, self.lsn - 1, self.MAX)

    @property
    def predecessor(self) -> Position:
        """A position after all events before this one."""
        if self.seq == 0:
            return self.end_of_previous_transaction
        return Position(self.incarnation, self.lsn, self.seq - 1)

    def after_sql(self) -> str:
        """Return a condition for rows after this position, whose parts have the names of COLUMNS."""
        i, lsn, seq = self.incarnation, self.lsn, self.seq
        return f"(incarnation > {i} OR (incarnation = {i} AND (lsn > {lsn} OR (lsn = {lsn} AND seq > {seq}))))"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse ``"1/4711/2"`` or ``"1/4711"``. Raises ValueError for anything else."""
        incarnation, lsn, *seq = text.split("/")
        if len(seq) > 1:
            raise ValueError(f"no such position: {text}")
        return cls(int(incarnation), int(lsn), int(seq[0]) if seq else 0)


Position.LAST = Position(Position.MAX, Position.MAX, Position.MAX)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a log stream must resume so that it loses no row and repeats none."""

    incarnation: int
    token: str
    """The end of the last transaction that landed completely, in the source's own notation.

    PostgreSQL: an LSN as text. MySQL: file and offset, or a GTID set.
    """
    landed: Position | None = None
    """The last row landed, after ``token``, if a batch ended inside a transaction.

    The stream reads that transaction again and skips all rows up to this one.
    """
