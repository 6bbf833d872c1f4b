"""Chunk windows in the log: which watermarks belong to this capture's chunks, and how each window ends.

A chunk is opened here before its low watermark is written, and its high watermark closes it (DBLog, algorithm 1).
Guarantee: a watermark of no open chunk (from a capture that died, or an UPDATE by hand) opens nothing and ends nothing.
Deciding which log events a window holds is left to reconcile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace

import pyarrow as pa

from dblake.base.core.source import HEARTBEAT_ROW, WatermarkSeen
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.landing.columns import CAPTURED, HEARTBEAT, HIGH, JSON, LOW, VERIFY_HIGH, VERIFY_LOW
from dblake.landing.control import LowMark


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
            start = LowMark(low.imported.first_batch).to_json() if low.imported else None
            return _row(mark, VERIFY_LOW if low.verify else LOW, low, start), None
        if high is None:
            return None, None
        high.add_batch(batch)
        end = high.build_end()
        high.discarded = end.reason
        if high.verify and not high.discarded:
            end = replace(end, repeat=why_stale(high))
        return _row(mark, VERIFY_HIGH if high.verify else HIGH, high, end.to_json()), high


def _row(mark: WatermarkSeen, kind: str, chunk: OpenChunk | None, payload: bytes | None) -> pa.Table:
    row = {
        **asdict(mark.position),
        "kind": kind,
        "table": chunk.table if chunk else None,
        "schema_id": chunk.read.schema.schema_id if chunk and chunk.read else None,
        "txid": mark.txid,
        "committed_at": mark.committed_at,
        "last_in_txn": True,
        "chunk_id": chunk.chunk_id if chunk else None,
        "format": JSON if payload else None,
        "payload": payload,
    }
    return pa.Table.from_pylist([row], schema=CAPTURED)
