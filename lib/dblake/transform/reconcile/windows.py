"""Read chunk windows from the watermarks in landing (DBLog, section 3.2, algorithm 1, steps 2 and 4).

Place: first step of a micro-batch. Guarantee: a window is bound by its lease epoch, table and chunk id, and landing has
exactly the rows its chunk read. Which log rows a window holds is left to ``window_index``, what follows for the chunk's
rows to ``microbatch``.

Within a micro-batch a window is identified by its number. Log rows and keys carry it as text in their ``chunk_id``
column, which decoding passes on; numbers are unique even if two chunks have the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from dblake.base.core.errors import WindowInvariantViolated
from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow
from dblake.landing.columns import HIGH, LOW
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd

LOG_EXPIRED = "landing no longer holds the log of its window from the beginning"
"""Why reconcile discards a window that capture closed: newer rows than the chunk's may be missing."""

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
        """The name that binds the row to its chunk."""
        return self.chunk_id, self.table, self.lease_epoch


@dataclass(frozen=True, slots=True)
class Ending:
    """A chunk's high watermark with its payload; ``window`` is None if the chunk was discarded."""

    row: WatermarkRow
    end: ChunkEnd
    window: ChunkWindow | None


def parse_endings(rows: Iterable[WatermarkRow], oldest: int = 1) -> list[Ending]:
    """Parse the ``high`` rows among these; ignore other rows.

    Discards the windows that begin before ``oldest``, landing's oldest batch: their log is not there. Raises
    WindowInvariantViolated for a second high watermark of a chunk, a first batch after the high watermark's, and a high
    watermark that precedes the low one.
    """
    by_chunk: dict[ChunkName, Ending] = {}
    for row in (r for r in rows if r.kind == HIGH):
        if row.chunk in by_chunk:
            raise _invariant_error(row, "has two high watermarks")
        end = ChunkEnd.from_json(row.payload or b"")
        window = None
        if end.status == CLOSED:
            if end.first_batch > row.batch:
                problem = f"has first batch {end.first_batch}, after its high watermark's batch {row.batch}"
                raise _invariant_error(row, problem)
            try:
                high = Position(row.incarnation, row.lsn, row.seq)
                window = end.window(chunk_id=row.chunk_id, table=row.table, lease_epoch=row.lease_epoch, high=high)
            except ValueError as error:
                raise _invariant_error(row, f"is invalid: high watermark precedes low watermark: {error}") from None
            if end.first_batch < oldest:
                end, window = replace(end, status=DISCARDED, reason=LOG_EXPIRED), None
        by_chunk[row.chunk] = Ending(row, end, window)
    return list(by_chunk.values())


def lows_without_high(rows: Iterable[WatermarkRow], ended: Iterable[ChunkName]) -> list[WatermarkRow]:
    """Return the ``low`` rows among these, one per chunk, of chunks that are not in ``ended``."""
    skipped = set(ended)
    lows = {row.chunk: row for row in rows if row.kind == LOW and row.chunk not in skipped}
    return list(lows.values())


def require_row_counts(closing: Iterable[Ending], landed: Mapping[ChunkName, int]) -> None:
    """Raise WindowInvariantViolated for a chunk of which landing has more or fewer rows than were read."""
    for ending in closing:
        count = landed.get(ending.row.chunk, 0)
        if count != ending.end.rows:
            raise _invariant_error(ending.row, f"read {ending.end.rows} rows, but landing has {count} of them")


def _invariant_error(row: WatermarkRow, problem: str) -> WindowInvariantViolated:
    at = Position(row.incarnation, row.lsn, row.seq)
    return WindowInvariantViolated(
        f"chunk {row.chunk_id} of {row.table} (lease epoch {row.lease_epoch}, high watermark {at}) {problem}",
        next_step="report this with the landing rows of the chunk; landing is corrupt or was edited by hand",
    )
