"""Chunk windows, as the watermarks of landing describe them.

DBLog, algorithm 1, steps 2 and 4, seen from the log. Promises that a window is bound by its lease epoch, table and
chunk id and has all the rows its chunk read. ``held`` decides which log rows it holds, ``dedupe`` what follows for the
chunk's rows.

Within a micro-batch a window goes by its number, which log rows and keys carry as text in their ``chunk_id`` column:
decoding passes that column on, and no two windows share a number whatever their chunks are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from dblake.core.errors import WindowInvariantViolated
from dblake.core.position import Position
from dblake.core.window import ChunkWindow
from dblake.landing.columns import HIGH, INCARNATION, LOW, LSN, TXID
from dblake.landing.control import CLOSED, ChunkEnd

ChunkName = tuple[str, str, int]
"""Chunk id, table and lease epoch: what binds chunk rows and watermarks to one window."""


@dataclass(frozen=True, slots=True)
class WatermarkRow:
    """A ``low`` or ``high`` row of landing."""

    batch: int
    lease_epoch: int
    incarnation: int
    lsn: int
    seq: int
    kind: str
    table: str
    txid: int | None
    committed_at: datetime | None
    chunk_id: str
    payload: bytes | None

    @property
    def chunk(self) -> ChunkName:
        """What the chunk is bound by."""
        return self.chunk_id, self.table, self.lease_epoch


@dataclass(frozen=True, slots=True)
class Ending:
    """A high watermark with its payload; ``window`` is None if the chunk was discarded."""

    row: WatermarkRow
    end: ChunkEnd
    window: ChunkWindow | None


def endings(rows: Iterable[WatermarkRow]) -> list[Ending]:
    """Parse the ``high`` rows among these. Raises WindowInvariantViolated for one that contradicts itself."""
    found: dict[ChunkName, Ending] = {}
    for row in (r for r in rows if r.kind == HIGH):
        if row.chunk in found:
            raise _broken(row, "has two high watermarks")
        end = ChunkEnd.from_json(row.payload or b"")
        window = None
        if end.status == CLOSED:
            if end.first_batch > row.batch:
                raise _broken(row, f"has a first batch, {end.first_batch}, after its high watermark")
            try:
                high = Position(row.incarnation, row.lsn, row.seq)
                window = end.window(chunk_id=row.chunk_id, table=row.table, lease_epoch=row.lease_epoch, high=high)
            except ValueError as error:
                raise _broken(row, f"is inside out: {error}") from None
        found[row.chunk] = Ending(row, end, window)
    return list(found.values())


def unanswered(rows: Iterable[WatermarkRow], answered: Iterable[ChunkName]) -> list[WatermarkRow]:
    """The low watermarks among these that no high one answered."""
    done = set(answered)
    lows = {row.chunk: row for row in rows if row.kind == LOW and row.chunk not in done}
    return list(lows.values())


def require_rows(closing: Iterable[Ending], found: Mapping[ChunkName, int]) -> None:
    """Raises WindowInvariantViolated for a chunk of which landing has more or fewer rows than were read."""
    for ending in closing:
        count = found.get(ending.row.chunk, 0)
        if count != ending.end.rows:
            raise _broken(ending.row, f"read {ending.end.rows} rows, but landing has {count} of them")


def reach(windows: Iterable[ChunkWindow]) -> Column:
    """True for all log rows that any of the windows holds, and false for most others.

    Made of comparisons with constants alone, so that file statistics skip what lies before and after. What a chunk's
    snapshot could not see may have landed long before its low watermark.
    """
    of_life: dict[int, list[ChunkWindow]] = {}
    for window in windows:
        of_life.setdefault(window.high.incarnation, []).append(window)
    near = F.lit(False)
    for incarnation, spans in of_life.items():
        since = F.col(LSN) >= min(window.low.lsn for window in spans)
        oldest = [window.snapshot.xmin for window in spans if window.snapshot]
        if oldest:
            since = since | (F.col(TXID) >= min(oldest))
        until = F.col(LSN) <= max(window.high.lsn for window in spans)
        near = near | ((F.col(INCARNATION) == incarnation) & until & since)
    return near


def _broken(row: WatermarkRow, what: str) -> WindowInvariantViolated:
    at = Position(row.incarnation, row.lsn, row.seq)
    return WindowInvariantViolated(
        f"chunk {row.chunk_id} of {row.table} (lease epoch {row.lease_epoch}, high watermark {at}) {what}",
        next_step="report this with the landing rows of the chunk; landing was written wrongly or edited by hand",
    )
