"""The payloads of landing's ``low``, ``high`` and ``moved`` rows, one line of JSON each.

A ``high`` row closes a chunk window (DBLog, algorithm 1, step 4) with all that reconciliation needs, or names the
reason why the chunk is discarded. Capture writes these lines, reconcile reads them; beyond landing's columns nothing
else passes between the two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow, Snapshot

CLOSED, DISCARDED = "closed", "discarded"


@dataclass(frozen=True, slots=True)
class DumpStart:
    """The beginning of a whole table's dump: its earliest low watermark, and the snapshot of its earliest chunk.

    A key that the dump did not return, and that has no event from then on, no longer exists.
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
        """Return the start that holds for both chunks: the earlier position, and the snapshot that sees less."""
        first = min(self.position, other.position)
        # Without one, a chunk shows all that the log has before its low watermark: it comes from a replica.
        snapshots = [each for each in (self.snapshot, other.snapshot) if each]
        snapshot = min(snapshots, key=_age) if snapshots else None
        return DumpStart(first.incarnation, first.lsn, first.seq, snapshot)


@dataclass(frozen=True, slots=True)
class Removal:
    """The keys of a dump of given keys, in key order of their columns, and its beginning: absent ones are deleted."""

    began: DumpStart
    keys: tuple[tuple[str, ...], ...]

    @classmethod
    def from_document(cls, doc: dict[str, Any]) -> Removal:
        """Return the value of a parsed payload."""
        return cls(DumpStart(**doc["began"]), tuple(tuple(key) for key in doc["keys"]))


@dataclass(frozen=True, slots=True)
class LowMark:
    """The payload of an imported chunk's ``low`` row: the batch from which its window has log. Other chunks have none.

    Its window begins where its files were taken, long before this row.
    """

    first_batch: int

    def to_json(self) -> bytes:
        """Return one canonical line."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> LowMark:
        """Return the payload that ``to_json`` wrote."""
        return cls(**json.loads(payload))


@dataclass(frozen=True, slots=True)
class MoveMark:
    """The payload of a ``moved`` row: the server that continues the log, and the incarnation that it continues.

    Nothing is missing between the two incarnations, so neither is a dump. Windows that were open are discarded.
    """

    server: str
    continues: int

    def to_json(self) -> bytes:
        """Return one canonical line."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> MoveMark:
        """Return the payload that ``to_json`` wrote."""
        return cls(**json.loads(payload))

    @property
    def reason(self) -> str:
        """The ledger's description of the move."""
        return f"server {self.server} continues the log of incarnation {self.continues}"


def _age(snapshot: str) -> tuple[int, int]:
    parsed = Snapshot.parse(snapshot)
    return parsed.xmax, -len(parsed.xip)


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """A ``high`` row's payload.

    ``snapshot`` is PostgreSQL's text form, or None where the position alone decides. ``first_batch`` is the batch of
    the chunk's first row in landing (its low watermark or its first rows). ``rows`` counts the rows that the chunk
    read. The last chunk of a whole table is empty and read after all others have landed: its ``began`` is set, and
    every existing key was returned since then. That of a dump of given keys is read only if the dump removes those that
    no longer exist: it has ``removes`` instead, the keys and where the dump began. ``max_removed`` is the share of the
    table's rows from before the dump that its end may delete, None if that is any: beyond it none is deleted.

    Of chunks read to verify the copy, the last one has ``began`` for given keys, too; ``repeat`` is why a chunk cannot
    be compared, and ``sampled`` is true if some of the table's key ranges are not read.
    The rows of an ``imported`` chunk are those of files: its low watermark is the position of the files.
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
    removes: Removal | None = None
    repeat: str | None = None
    sampled: bool = False
    max_removed: float | None = None
    imported: bool = False

    def to_json(self) -> bytes:
        """Return one canonical line."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> ChunkEnd:
        """Return the payload that ``to_json`` wrote."""
        doc = json.loads(payload)
        began, removes = doc["began"], doc.get("removes")
        return cls(**doc | {
            "began": DumpStart(**began) if began else None,
            "removes": Removal.from_document(removes) if removes else None,
        })

    @property
    def dump_start(self) -> DumpStart | None:
        """Where the dump that ends with this chunk began, if it deletes keys that it did not return."""
        return self.removes.began if self.removes else self.began

    def withholds(self, absent: int, known: int) -> bool:
        """Return True if the dump that ends here deletes nothing: too many of the ``known`` keys are absent from it."""
        return self.max_removed is not None and absent > self.max_removed * known

    def window(self, *, chunk_id: str, table: str, lease_epoch: int, high: Position) -> ChunkWindow:
        """Return the window that this row closes. Raises ValueError if the high watermark precedes the low one."""
        return ChunkWindow(
            chunk_id=chunk_id, dump_id=self.dump_id, table=table, lease_epoch=lease_epoch,
            low=Position(high.incarnation, self.low_lsn, self.low_seq), high=high, schema_id=self.schema_id,
            rows=self.rows, first_batch=self.first_batch,
            snapshot=Snapshot.parse(self.snapshot) if self.snapshot else None,
        )
