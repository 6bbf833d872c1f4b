"""Where a row stands in the order of history.

A position is ``(incarnation, lsn, seq)``, compared as numbers. ``incarnation`` counts the log's lives: it rises when
a server is replaced, a timeline forks or a log is reset, so that numbers of two lives never compare. ``lsn`` names a
transaction by its place in commit order, ``seq`` orders the rows within it. No two events share a position.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the log. Ordered; the later in history, the greater."""

    incarnation: int
    lsn: int
    seq: int = 0

    def __post_init__(self) -> None:
        if self.incarnation < 1 or self.lsn < 0 or self.seq < 0:
            raise ValueError(f"no such position: {self.incarnation}/{self.lsn}/{self.seq}")

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.lsn}/{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """``"1/4711/2"`` or ``"1/4711"``; raises ValueError for anything else."""
        incarnation, lsn, *seq = text.split("/")
        if len(seq) > 1:
            raise ValueError(f"no such position: {text}")
        return cls(int(incarnation), int(lsn), int(seq[0]) if seq else 0)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """From where a log stream must go on so that nothing is lost and nothing comes twice.

    ``token`` is the source's own word for the end of the last transaction landed whole (PostgreSQL: an LSN as text;
    MySQL: file and offset, or a GTID set). ``landed`` is the last row landed, which lies after ``token`` when a
    batch ended inside a transaction: the stream starts that transaction again and skips all up to ``landed``.
    """

    incarnation: int
    token: str
    landed: Position | None = None
