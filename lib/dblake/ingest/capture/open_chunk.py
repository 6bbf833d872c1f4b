"""A chunk between its low watermark and the landing of its high one, and how its window ends.

Place: between chunk readers, which open chunks, and ``windows``, which finds their watermarks in the log. Guarantee: a
chunk that was read elsewhere, or whose schema changed in the window, is discarded, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

from dblake.base.core.position import Position
from dblake.base.core.source import ChunkRead
from dblake.ingest.imports.spec import ImportSpec
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd, DumpStart, Removal


@dataclass(slots=True)
class OpenChunk:
    """A chunk between its low watermark and the landing of its high one. ``chunk_id`` is its low watermark's value.

    ``closes`` is set for the chunk that ends a table's dump: where the dump began; ``removes`` are the keys of a dump
    that deletes those of them that no longer exist. ``log_schema`` is the table's last schema in the log since the low
    watermark, if there is one. ``discarded`` is why the chunk does not count. With ``verify`` its rows are compared
    with state, and are no data; ``sampled`` if they are those of some key ranges only. ``max_removed`` is what was
    requested. The rows of an ``imported`` chunk are as of the position of its files, so its window begins there.
    """

    dump_id: str
    table: str
    number: int
    closes: DumpStart | None = None
    removes: tuple[tuple[str, ...], ...] | None = None
    verify: bool = False
    sampled: bool = False
    max_removed: float | None = None
    imported: ImportSpec | None = None
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

    @property
    def start(self) -> DumpStart | None:
        """Where the chunk's window begins: what its rows are at least as new as; None before the low watermark."""
        if self.low is None:
            return None
        if self.imported:
            return self.imported.began
        return DumpStart(self.low.incarnation, self.low.lsn, self.low.seq, self.read.snapshot if self.read else None)

    def build_end(self) -> ChunkEnd:
        """Return how the window ends, once the log has shown the high watermark."""
        read, low, reason = self.read, self.low, self.discarded
        start = self.start
        if read is None or low is None or start is None:
            reason = "the log shows its high watermark but not its low one"
        elif start.incarnation != low.incarnation or start.position > low:
            reason = "the log of the position of the files is not the one that is read now"
        elif read.low_seen != self.chunk_id:
            reason = "the chunk was read elsewhere than its watermark was written"
        elif read.schema_changed or self.log_schema not in (None, read.schema.schema_id):
            reason = "schema changed in the window"
        return ChunkEnd(
            dump_id=self.dump_id,
            number=self.number,
            low_lsn=start.lsn if start else 0,
            low_seq=start.seq if start else 0,
            schema_id=read.schema.schema_id if read else "",
            rows=read.rows if read else 0,
            first_batch=self.first_batch or 0,
            snapshot=start.snapshot if start else None,
            status=DISCARDED if reason else CLOSED,
            reason=reason,
            began=self.closes if self.removes is None else None,
            removes=Removal(self.closes, self.removes) if self.closes and self.removes is not None else None,
            sampled=self.sampled,
            imported=self.imported is not None,
            max_removed=self.max_removed if self.closes and self.removes is None else None,
        )
