"""A chunk window: the part of the log a chunk was read in, and which events of it the chunk may not reflect.

The published rule decides by position alone: events between the low and the high watermark evict the chunk rows of
their keys (DBLog, section 3.2, algorithm 1, step 6). On PostgreSQL a commit record reaches the log *before* the
transaction becomes visible, so a chunk can be older than its low watermark. There the window also contains every event
at or before the high watermark whose transaction the chunk's snapshot could not see. Evicting rows is for
``reconcile``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.base.core.position import Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions visible to a chunk's statement, as 64-bit ids (PostgreSQL ``pg_current_snapshot()``)."""

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.xmin > self.xmax or any(not self.xmin <= x < self.xmax for x in self.xip):
            raise ValueError(f"no such snapshot: {self.xmin}:{self.xmax}")

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse PostgreSQL's notation, ``xmin:xmax:xip,xip``. Raises ValueError for anything else."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(x) for x in xip.split(",") if x))

    def sees(self, txid: int) -> bool:
        """Return True if a committed transaction was visible to the chunk."""
        return txid < self.xmax and txid not in self.xip


@dataclass(frozen=True, slots=True)
class ChunkWindow:
    """One chunk's window, bound by lease epoch, table and chunk id. Raises ValueError unless ``low`` < ``high``."""

    chunk_id: str
    dump_id: str
    table: str
    lease_epoch: int
    low: Position
    high: Position
    schema_id: str
    rows: int
    first_batch: int
    snapshot: Snapshot | None = None

    def __post_init__(self) -> None:
        if self.low.incarnation != self.high.incarnation or not self.low < self.high:
            raise ValueError(f"chunk {self.chunk_id}: high watermark {self.high} is not after low {self.low}")

    def holds(self, position: Position, txid: int | None) -> bool:
        """Return True if the chunk may not reflect an event at ``position``, so that the event evicts its key."""
        if position.incarnation != self.high.incarnation or position > self.high:
            return False
        if position > self.low:
            return True
        return self.snapshot is not None and txid is not None and not self.snapshot.sees(txid)
