"""Log pieces into the batch: watermarks become landing rows, and schemas are tracked in the log's order.

Guarantee: what a piece changes about tables is recorded before the piece can land, because the log shows it only once.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.core.source import HEARTBEAT_ROW, LogPiece
from dblake.base.core.source.heartbeats import heartbeat_name
from dblake.ingest.capture.batch import BatchBuilder, schema_row
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dropped_schemas import expand_dropped_schemas
from dblake.ingest.capture.dumps import DumpRunner
from dblake.ingest.capture.lifecycle import Lifecycle
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.capture.stale_detector import StaleTableDetector
from dblake.ingest.capture.stale_tables import clear_completed, read_stale_tables
from dblake.ingest.capture.windows import Windows
from dblake.landing.columns import SCHEMA


class LogIngest:
    """Adds the pieces of one log to the batch, in order."""

    def __init__(
        self, capture: CaptureContext, detector: StaleTableDetector, lifecycle: Lifecycle, dumps: DumpRunner,
        windows: Windows, batches: BatchBuilder,
    ) -> None:
        self._capture, self._detector, self._lifecycle, self._dumps = capture, detector, lifecycle, dumps
        self._windows, self._batches = windows, batches
        self._schema_ids: dict[str, str] = {}

    def add(self, piece: LogPiece, heartbeat: str) -> None:
        """Add a piece: its rows, its watermarks as rows, and the chunks that its high watermarks close.

        ``heartbeat`` is the value of the heartbeat row behind it.
        """
        rows, closes, heartbeats = [], [], set[str]()
        retry = self._capture.retrying(self._capture.settings.reconnect_seconds)
        if piece.rejected:
            self._lifecycle.reject(piece.rejected)
        # Before the piece lands, here and below: the log is never read before what has landed.
        if self._detector.note_partitions(piece.partitions) and retry(self._detector.scan_catalog):
            self._dumps.on_dump_queued()
        if piece.rows.num_rows:
            captured = expand_dropped_schemas(piece.rows, self._detector.known_tables)
            self._lifecycle.on_log_rows(piece.rows)
            if (kept := self._lifecycle.without_suspended(captured)).num_rows:
                rows.append(kept)
            if retry(self._detector.on_log_rows, captured):
                self._dumps.on_dump_queued()
        schemas = deque(_schemas_of(piece) if rows else ())
        for mark in piece.watermarks:
            # In the log's order: a schema before the low or after the high watermark is not in the window.
            while schemas and schemas[0][0] < mark.position:
                self._on_schema(*schemas.popleft()[1:])
            row, closed = self._windows.on_watermark(mark, self._batches.number, self._why_stale)
            if row is not None:
                rows.append(row)
            if closed:
                closes.append(closed)
                rows += self._schema_rows_from_chunk(closed, mark.position)
            if mark.reader == HEARTBEAT_ROW:
                heartbeats.add(heartbeat_name(mark.value))
        for _, table, schema_id in schemas:
            self._on_schema(table, schema_id)
        self._batches.add_log(rows, piece.bytes, piece.reached, closes, heartbeats, heartbeat)

    def _on_schema(self, table: str, schema_id: str) -> None:
        self._schema_ids[table] = schema_id
        self._windows.on_schema(table, schema_id)

    def _why_stale(self, chunk: OpenChunk) -> str | None:
        """Return why state cannot equal a chunk: rows of its table changed without row events, and are not dumped yet.

        Scans the catalog first if the chunk has another schema than the log, and where the log does not show such
        changes once per table, at its last chunk: what that finds concerns all of its chunks.
        """
        has_new_schema = chunk.read and self._schema_ids.get(chunk.table) != chunk.read.schema.schema_id
        if has_new_schema or (chunk.closes and not self._capture.source.schema_changes_in_log):
            retry = self._capture.retrying(self._capture.settings.reconnect_seconds)
            if retry(self._detector.scan_catalog):
                self._dumps.on_dump_queued()
        clear_completed(self._capture.store)
        stale = (each.why for each in read_stale_tables(self._capture.store) if each.table == chunk.table)
        return next((f"its rows changed without row events: {why}" for why in stale), None)

    def _schema_rows_from_chunk(self, chunk: OpenChunk, high: Position) -> list[pa.Table]:
        """Return the schema row of a chunk whose schema the log has not shown; it may never show the table again."""
        if chunk.discarded or chunk.read is None:
            return []
        schema = chunk.read.schema
        if self._schema_ids.get(chunk.table) == schema.schema_id:
            return []
        self._schema_ids[chunk.table] = schema.schema_id
        return [schema_row(schema, high)]


def _schemas_of(piece: LogPiece) -> list[tuple[Position, str, str]]:
    """Return position, table and schema id of each schema that a piece declares, in order."""
    rows = piece.rows.filter(pc.equal(piece.rows["kind"], SCHEMA)).to_pylist()
    return [(Position(r["incarnation"], r["lsn"], r["seq"]), r["table"], r["schema_id"]) for r in rows]
