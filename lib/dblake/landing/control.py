"""What the ``low`` and ``high`` rows of landing say, as one line of JSON each.

A ``high`` row closes a chunk window with all that reconciliation needs, or says by name why the chunk is discarded.
Capture writes these lines, reconcile reads them; nothing else passes between the two but landing's columns.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dblake.core.position import Position
from dblake.core.window import ChunkWindow, Snapshot

CLOSED, DISCARDED = "closed", "discarded"


@dataclass(frozen=True, slots=True)
class DumpStart:
    """Where the dump of a whole table began: its earliest low watermark, and what its earliest chunk could see.

    A key the dump did not return, and of which nothing is known from then on, is not there any more.
    """

    incarnation: int
    lsn: int
    seq: int
    snapshot: str | None = None

    @property
    def position(self) -> Position:
        """The earliest low watermark."""
        return Position(self.incarnation, self.lsn, self.seq)

    def and_chunk(self, other: DumpStart) -> DumpStart:
        """Of two chunks: what none of them can have missed. Of two snapshots the earlier one sees no more."""
        first = min(self.position, other.position)
        snapshot = self.snapshot
        if snapshot and other.snapshot:
            snapshot = min(snapshot, other.snapshot, key=_age)
        return DumpStart(first.incarnation, first.lsn, first.seq, snapshot)


def _age(snapshot: str) -> tuple[int, int]:
    seen = Snapshot.parse(snapshot)
    return seen.xmax, -len(seen.xip)


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """A ``high`` row's payload.

    ``snapshot`` is PostgreSQL's text form, or None where position alone decides. ``first_batch`` is the batch of the
    chunk's earliest trace in landing (its low watermark or its first rows). ``rows`` counts what the chunk read. The
    last chunk of a whole table reads nothing, after all others have landed: its ``began`` says that all keys there
    are have been returned since then.
    """

    dump_id: str
    number: int
    low_lsn: int
    low_seq: int
    schema_id: str
    rows: int
    first_batch: int
    snapshot: str | None = None
    status: str = CLOSED
    reason: str | None = None
    began: DumpStart | None = None

    def to_json(self) -> bytes:
        """One canonical line."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> ChunkEnd:
        """Reads ``to_json``'s line."""
        doc = json.loads(payload)
        return cls(**doc | {"began": DumpStart(**doc["began"]) if doc["began"] else None})

    def window(self, *, chunk_id: str, table: str, lease_epoch: int, high: Position) -> ChunkWindow:
        """The window this row closes; ValueError if it is inside out."""
        return ChunkWindow(
            chunk_id=chunk_id, dump_id=self.dump_id, table=table, lease_epoch=lease_epoch,
            low=Position(high.incarnation, self.low_lsn, self.low_seq), high=high, schema_id=self.schema_id,
            rows=self.rows, first_batch=self.first_batch,
            snapshot=Snapshot.parse(self.snapshot) if self.snapshot else None,
        )
