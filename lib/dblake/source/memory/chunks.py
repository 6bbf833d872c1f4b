"""Chunk reads and watermarks on a memory database, each as of one moment.

Promises what every ChunkReader promises; rows come as lines of COPY text, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dblake.core.errors import SourceError, Unsupported
from dblake.core.schema import TableSchema
from dblake.core.source import ChunkRead, ChunkRequest
from dblake.landing.columns import COPY
from dblake.source.memory.database import MemoryDatabase, Sight
from dblake.source.memory.encode import copy_line
from dblake.source.memory.tables import Key, Row

_ROWS_DELIVERED = 3


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
                    f"source {self._name}: the watermark table has no row {reader}", next_step="put the row there"
                )

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        self._require_connection()
        keys = [key for key, _ in self._dumpable(table).rows]
        parts = min(parts, len(keys) // rows)
        return [keys[len(keys) * part // parts - 1] for part in range(1, parts)]

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        self._require_connection()
        sight = self._dumpable(request.table)
        if sight.locked:
            raise SourceError(f"table {request.table} is locked by a transaction", next_step="run again")
        rows = self._wanted(sight, request)
        lines = [copy_line([row[name] for name in sight.schema.names]) for _, row in rows]
        for start in range(0, len(lines), _ROWS_DELIVERED):
            self._require_connection()
            deliver(pa.array(lines[start : start + _ROWS_DELIVERED], pa.binary()), sight.schema)
        now = self._database.see(request.table)
        return ChunkRead(
            rows=len(rows),
            last_key=rows[-1][0] if rows else None,
            schema=sight.schema,
            low_seen=sight.watermarks.get(str(request.reader)) or "",
            snapshot=sight.snapshot,
            schema_changed=now is None or now.schema != sight.schema,
        )

    def _dumpable(self, table: str) -> Sight:
        sight = self._database.see(table)
        if sight is None:
            raise Unsupported(f"table {table} is not in the database", next_step="correct its name")
        if not sight.schema.primary_key:
            raise Unsupported(
                f"table {table} has no primary key, so it cannot be dumped",
                next_step="add a primary key; its changes are followed from the log meanwhile",
            )
        return sight

    def _wanted(self, sight: Sight, request: ChunkRequest) -> list[tuple[Key, Row]]:
        if request.keys is not None:
            return [(key, row) for key, row in sight.rows if key in request.keys][: request.limit]
        order = self._database.table(request.table).order
        after, upto = (None if key is None else order(key) for key in (request.after, request.upto))
        return [
            (key, row) for key, row in sight.rows
            if (after is None or order(key) > after) and (upto is None or order(key) <= upto)
        ][: request.limit]

    def close(self) -> None:
        """Nothing to end."""

    def _require_connection(self) -> None:
        if self._connection != self._database.connections:
            raise SourceError(
                f"source {self._name}: the connection to the memory database is gone", next_step="run again"
            )
