"""Chunk windows in the log: which watermarks belong to this capture's chunks, and how each window ends.

A chunk is opened here before its low watermark is written, and its high watermark closes it (DBLog, algorithm 1).
Guarantee: a watermark of no open chunk (from a capture that died, or an UPDATE by hand) opens nothing and ends nothing.
Deciding which log events a window holds is left to reconcile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa

from dblake.core.position import Position
from dblake.core.source import HEARTBEAT_ROW, ChunkRead, WatermarkSeen
from dblake.landing.columns import CAPTURED, HEARTBEAT, HIGH, JSON, LOW, VERIFY_HIGH, VERIFY_LOW
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd, DumpStart, Removal


@dataclass(slots=True)
class OpenChunk:
    """A chunk between its low watermark and the landing of its high one. ``chunk_id`` is its low watermark's value.

    ``closes`` is set for the chunk that ends a table's dump: where the dump began; ``removes`` are the keys of a dump
    that deletes those of them that no longer exist. ``log_schema`` is the table's last schema in the log since the low
    watermark, if there is one. ``discarded`` is why the chunk does not count. With ``verify`` its rows are compared
    with state, and are no data; ``sampled`` if they are those of some key ranges only.
    """

    dump_id: str
    table: str
    number: int
    closes: DumpStart | None = None
    removes: tuple[tuple[str, ...], ...] | None = None
    verify: bool = False
    sampled: bool = False
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


class Windows:
    """The open chunks of this process. Chunk readers open them, the log loop closes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lows: dict[str, OpenChunk] = {}
        self._highs: dict[str, OpenChunk] = {}

    def open(self, chunk: OpenChunk) -> None:
        """Expect the chunk's watermarks; must be called before they are written."""
        with self._lock:
            self._lows[chunk.chunk_id] = self._highs[chunk.high_value] = chunk

    def abandon(self, chunk: OpenChunk) -> None:
        """Drop a chunk whose high watermark may never appear; if it does appear, it ends nothing."""
        with self._lock:
            self._lows.pop(chunk.chunk_id, None)
            self._highs.pop(chunk.high_value, None)

    def on_schema(self, table: str, schema_id: str) -> None:
        """Record a schema that the log declares for a table."""
        with self._lock:
            for chunk in self._highs.values():
                if chunk.low is not None and chunk.table == table:
                    chunk.log_schema = schema_id

    def on_watermark(
        self, mark: WatermarkSeen, batch: int, why_stale: Callable[[OpenChunk], str | None] = lambda _: None
    ) -> tuple[pa.Table | None, OpenChunk | None]:
        """Return the CAPTURED row of a watermark in the log, and the chunk that it closes.

        Both are None for a watermark of no open chunk; only a high watermark closes a chunk. ``why_stale`` returns, for
        a chunk read to verify the copy, why the copy is known to differ from it.
        """
        if mark.reader == HEARTBEAT_ROW:
            return _row(mark, HEARTBEAT, None, None), None
        with self._lock:
            low = self._lows.pop(mark.value, None)
            high = self._highs.pop(mark.value, None)
        if low is not None:
            low.low = mark.position
            low.add_batch(batch)
            return _row(mark, VERIFY_LOW if low.verify else LOW, low, None), None
        if high is None:
            return None, None
        high.add_batch(batch)
        end = _chunk_end(high)
        high.discarded = end.reason
        if high.verify and not high.discarded:
            end = replace(end, repeat=why_stale(high))
        return _row(mark, VERIFY_HIGH if high.verify else HIGH, high, end), high


def _chunk_end(chunk: OpenChunk) -> ChunkEnd:
    read, low, reason = chunk.read, chunk.low, chunk.discarded
    if read is None or low is None:
        reason = "the log shows its high watermark but not its low one"
    elif read.low_seen != chunk.chunk_id:
        reason = "the chunk was read elsewhere than its watermark was written"
    elif read.schema_changed or chunk.log_schema not in (None, read.schema.schema_id):
        reason = "schema changed in the window"
    return ChunkEnd(
        dump_id=chunk.dump_id,
        number=chunk.number,
        low_lsn=low.lsn if low else 0,
        low_seq=low.seq if low else 0,
        schema_id=read.schema.schema_id if read else "",
        rows=read.rows if read else 0,
        first_batch=chunk.first_batch or 0,
        snapshot=read.snapshot if read else None,
        status=DISCARDED if reason else CLOSED,
        reason=reason,
        began=chunk.closes if chunk.removes is None else None,
        removes=Removal(chunk.closes, chunk.removes) if chunk.closes and chunk.removes is not None else None,
        sampled=chunk.sampled,
    )


def _row(mark: WatermarkSeen, kind: str, chunk: OpenChunk | None, end: ChunkEnd | None) -> pa.Table:
    row = {
        "incarnation": mark.position.incarnation,
        "lsn": mark.position.lsn,
        "seq": mark.position.seq,
        "kind": kind,
        "table": chunk.table if chunk else None,
        "schema_id": chunk.read.schema.schema_id if chunk and chunk.read else None,
        "txid": mark.txid,
        "committed_at": mark.committed_at,
        "last_in_txn": True,
        "chunk_id": chunk.chunk_id if chunk else None,
        "format": JSON if end else None,
        "payload": end.to_json() if end else None,
    }
    return pa.Table.from_pylist([row], schema=CAPTURED)
