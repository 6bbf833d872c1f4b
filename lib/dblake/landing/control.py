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
class ChunkEnd:
    """A ``high`` row's payload.

    ``snapshot`` is PostgreSQL's text form, or None where position alone decides. ``first_batch`` is the batch of the
    chunk's earliest trace in landing (its low watermark or its first rows). ``rows`` counts what the chunk read.
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

    def to_json(self) -> bytes:
        """One canonical line."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> ChunkEnd:
        """Reads ``to_json``'s line."""
        return cls(**json.loads(payload))

    def window(self, *, chunk_id: str, table: str, lease_epoch: int, high: Position) -> ChunkWindow:
        """The window this row closes; ValueError if it is inside out."""
        return ChunkWindow(
            chunk_id=chunk_id, dump_id=self.dump_id, table=table, lease_epoch=lease_epoch,
            low=Position(high.incarnation, self.low_lsn, self.low_seq), high=high, schema_id=self.schema_id,
            rows=self.rows, first_batch=self.first_batch,
            snapshot=Snapshot.parse(self.snapshot) if self.snapshot else None,
        )
