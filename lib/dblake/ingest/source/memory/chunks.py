"""Reads chunks and writes watermarks on a memory database, each in one snapshot.

Guarantee: that of every ChunkReader. Rows are delivered as lines of COPY text, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dblake.base.core.errors import SourceError, Unsupported
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import HEARTBEAT_ROW, ChunkRead, ChunkRequest
from dblake.base.core.source.heartbeats import chain_heartbeat
from dblake.ingest.source.memory.database import MemoryDatabase, SnapshotTable
from dblake.ingest.source.memory.encode import copy_line
from dblake.ingest.source.memory.tables import Key, Row
from dblake.landing.columns import COPY

_ROWS_PER_DELIVERY = 3


class MemoryChunkReader:
    """See ChunkReader for the methods."""

    format = COPY

    def __init__(self, database: MemoryDatabase, name: str) -> None:
        self._database, self._name = database, name
        self._connection = database.connections

    def mark(self, reader: int, value: str) -> None:
        self._require_connection()
        with self._database.begin() as txn:
            txn.update(self._database.watermark_table, {"id": str(reader)}, {"value": value})
            if not txn.txid:
                raise SourceError(
                    f"source {self._name}: the watermark table has no row {reader}", next_step="insert the row"
                )

    def beat(self, name: str) -> None:
        with self._database.changed:
            self.mark(HEARTBEAT_ROW, chain_heartbeat(name, self.read_mark(HEARTBEAT_ROW)))

    def read_mark(self, reader: int) -> str:
        self._require_connection()
        rows = self._database.rows(self._database.watermark_table)
        return next((row["value"] or "" for row in rows if row["id"] == str(reader)), "")

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        self._require_connection()
        keys = [key for key, _ in self._require_dumpable(table).rows]
        parts = min(parts, len(keys) // rows)
        return [keys[len(keys) * part // parts - 1] for part in range(1, parts)]

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        self._require_connection()
        view = self._require_dumpable(request.table)
        if view.locked:
            raise SourceError(f"table {request.table} is locked by a transaction", next_step="run capture again")
        if request.rows is not None:
            return self._supply(view, request, deliver)
        rows = self._select(view, request)
        lines = [copy_line([row[name] for name in view.schema.names]) for _, row in rows]
        for start in range(0, len(lines), _ROWS_PER_DELIVERY):
            self._require_connection()
            deliver(pa.array(lines[start : start + _ROWS_PER_DELIVERY], pa.binary()), view.schema)
        current = self._database.see(request.table)
        return ChunkRead(
            rows=len(rows),
            last_key=rows[-1][0] if rows else None,
            schema=view.schema,
            low_seen=view.watermarks.get(str(request.reader)) or "",
            snapshot=view.snapshot,
            schema_changed=current is None or current.schema != view.schema,
        )

    def _supply(
        self, view: SnapshotTable, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]
    ) -> ChunkRead:
        assert request.rows is not None
        rows, last = request.rows(view.schema, self.format, deliver)
        current = self._database.see(request.table)
        return ChunkRead(
            rows=rows, last_key=last, schema=view.schema, low_seen=view.watermarks.get(str(request.reader)) or "",
            schema_changed=current is None or current.schema != view.schema,
        )

    def _require_dumpable(self, table: str) -> SnapshotTable:
        view = self._database.see(table)
        if view is None:
            raise Unsupported(f"table {table} does not exist", next_step="correct its name")
        if not view.schema.primary_key:
            raise Unsupported(
                f"table {table} has no primary key, so it cannot be dumped",
                next_step="add a primary key; preflight shows whether its changes are captured until then",
            )
        return view

    def _select(self, view: SnapshotTable, request: ChunkRequest) -> list[tuple[Key, Row]]:
        if request.keys is not None:
            return [(key, row) for key, row in view.rows if key in request.keys][: request.limit]
        order = self._database.table(request.table).order
        after, upto = (None if key is None else order(key) for key in (request.after, request.upto))
        return [
            (key, row) for key, row in view.rows
            if (after is None or order(key) > after) and (upto is None or order(key) <= upto)
        ][: request.limit]

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _require_connection(self) -> None:
        if self._connection != self._database.connections:
            raise SourceError(
                f"source {self._name}: the connection to the memory database is lost", next_step="run capture again"
            )
