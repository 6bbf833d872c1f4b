"""A chunk between its low watermark and the landing of its high one, and how its window ends.

Place: between chunk readers, which open chunks, and ``windows``, which finds their watermarks in the log. Guarantee: a
chunk that was read elsewhere, or whose schema changed in the window, is discarded, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

from dblake.core.position import Position
from dblake.core.source import ChunkRead
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd, DumpStart, Removal


@dataclass(slots=True)
class OpenChunk:
    """A chunk between its low watermark and the landing of its high one. ``chunk_id`` is its low watermark's value.

    ``closes`` is set for the chunk that ends a table's dump: where the dump began; ``removes`` are the keys of a dump
    that deletes those of them that no longer exist. ``log_schema`` is the table's last schema in the log since the low
    watermark, if there is one. ``discarded`` is why the chunk does not count. With ``verify`` its rows are compared
    with state, and are no data; ``sampled`` if they are those of some key ranges only. ``max_removed`` is what was
    requested.
    """

    dump_id: str
    table: str
    number: int
    closes: DumpStart | None = None
    removes: tuple[tuple[str, ...], ...] | None = None
    verify: bool = False
    sampled: bool = False
    max_removed: float | None = None
    chunk_id: str = field(default_factory=lambda: str(uuid4()))
    high_value: str = field(default_factory=lambda: str(uuid4()))
    read: ChunkRead | None = None
    low: Position | None = None
    first_batch: int | None = None
    log_schema: str | None = None
    discarded: str | None = None

    def add_batch(self, batch: int) -> None:
        """Record that a row of the chunk or a watermark of it is in ``batch``."""
        self.first_batch = batch if self.first_batch is None else min(self.first_batch, batch)

    def build_end(self) -> ChunkEnd:
        """Return how the window ends, once the log has shown the high watermark."""
        read, low, reason = self.read, self.low, self.discarded
        if read is None or low is None:
            reason = "the log shows its high watermark but not its low one"
        elif read.low_seen != self.chunk_id:
            reason = "the chunk was read elsewhere than its watermark was written"
        elif read.schema_changed or self.log_schema not in (None, read.schema.schema_id):
            reason = "schema changed in the window"
        return ChunkEnd(
            dump_id=self.dump_id,
            number=self.number,
            low_lsn=low.lsn if low else 0,
            low_seq=low.seq if low else 0,
            schema_id=read.schema.schema_id if read else "",
            rows=read.rows if read else 0,
            first_batch=self.first_batch or 0,
            snapshot=read.snapshot if read else None,
            status=DISCARDED if reason else CLOSED,
            reason=reason,
            began=self.closes if self.removes is None else None,
            removes=Removal(self.closes, self.removes) if self.closes and self.removes is not None else None,
            sampled=self.sampled,
            max_removed=self.max_removed if self.closes and self.removes is None else None,
        )
