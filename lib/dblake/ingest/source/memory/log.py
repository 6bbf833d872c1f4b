"""The log of a memory database as a stream: framed, not decoded.

Guarantee: that of every LogStream. Unlike a server's log, this one is in memory, so the stream reads a transaction's
last row ahead and never holds a row back.
"""

from __future__ import annotations

import time

import pyarrow as pa

from dblake.base.core.errors import ACCEPT_GAP, PositionLost, PrerequisitesNotMet, SourceError
from dblake.base.core.names import TableFilter, split_qualified
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import LogPiece, WatermarkSeen
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.tables import LoggedChange, LoggedTransaction
from dblake.landing.columns import CAPTURED, JSON, PGOUTPUT, ROW, SCHEMA, TRUNCATE


class MemoryLogStream:
    """See LogStream. A token is the end of a transaction, a number as text; ``name`` is the slot's."""

    def __init__(
        self, database: MemoryDatabase, name: str, table_filter: TableFilter, resume: ResumePoint | None,
        incarnation: int,
    ) -> None:
        self._database, self._name = database, name
        self._table_filter, self._incarnation = table_filter, incarnation
        with database.changed:
            self._end = _acquire_slot(database, name, resume)
            self._connection = database.connections
        self._skip_to = resume.landed if resume else None
        self._sent = 0
        self._schema_ids: dict[str, str] = {}
        self.start = ResumePoint(incarnation, str(self._end), self._skip_to)
        self._start_piece()

    def _start_piece(self) -> None:
        self._rows: list[dict[str, object]] = []
        self._seen: list[WatermarkSeen] = []
        self._bytes = 0
        self._piece_start = (self._end, self._sent)

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        until = time.monotonic() + seconds
        with self._database.changed:
            while True:
                self._require_connection()
                is_full = self._gather(max_bytes, max_rows)
                remaining = until - time.monotonic()
                if is_full or remaining <= 0:
                    return self._build_piece() if self._piece_start != (self._end, self._sent) else None
                self._database.changed.wait(remaining)

    def _gather(self, max_bytes: int, max_rows: int) -> bool:
        """Append all available changes to the piece; return True if a limit is reached."""
        for txn in self._database.log:
            if txn.end <= self._end:
                continue
            captured = [n for n, change in enumerate(txn.changes) if self._is_captured(change.schema)]
            for number in range(self._sent, len(txn.changes)):
                if self._bytes >= max_bytes or len(self._rows) >= max_rows:
                    return True
                self._append(txn, number, is_last=bool(captured) and number == captured[-1])
                self._sent = number + 1
            self._end, self._sent = txn.end, 0
        return self._bytes >= max_bytes or len(self._rows) >= max_rows

    def _append(self, txn: LoggedTransaction, number: int, *, is_last: bool) -> None:
        change, position = txn.changes[number], Position(self._incarnation, txn.lsn, number * 2)
        if self._skip_to is not None and position <= self._skip_to:
            return
        if change.schema.table == self._database.watermark_table:
            if change.row is not None:
                self._seen.append(WatermarkSeen(
                    int(change.row["id"] or 0), change.row["value"] or "", position, txn.txid, txn.committed_at
                ))
            return
        if not self._is_captured(change.schema):
            return
        self._append_schema(txn, change.schema, position)
        self._bytes += len(change.payload)
        self._rows.append(self._build_row(txn, change, position) | {"last_in_txn": is_last})

    def _is_captured(self, schema: TableSchema) -> bool:
        return schema.table != self._database.watermark_table and self._table_filter(*split_qualified(schema.table))

    def _build_row(self, txn: LoggedTransaction, change: LoggedChange, position: Position) -> dict[str, object]:
        return {
            "incarnation": position.incarnation, "lsn": position.lsn, "seq": position.seq,
            "kind": TRUNCATE if change.truncate else ROW, "table": change.schema.table,
            "schema_id": change.schema.schema_id, "txid": txn.txid, "committed_at": txn.committed_at,
            "last_in_txn": False, "format": PGOUTPUT, "payload": change.payload,
        }

    def _append_schema(self, txn: LoggedTransaction, schema: TableSchema, position: Position) -> None:
        """Append a schema row before the first row of a table in this stream, and after each schema change."""
        if self._schema_ids.get(schema.table) != schema.schema_id:
            self._schema_ids[schema.table] = schema.schema_id
            row = self._build_row(txn, LoggedChange(schema, schema.to_json().encode()), position)
            self._rows.append(row | {"kind": SCHEMA, "format": JSON})

    def _build_piece(self) -> LogPiece:
        landed = None
        if self._sent:
            inside = next(txn for txn in self._database.log if txn.end > self._end)
            landed = Position(self._incarnation, inside.lsn, (self._sent - 1) * 2)
        rows = pa.Table.from_pylist(self._rows, schema=CAPTURED)
        piece = LogPiece(
            rows, ResumePoint(self._incarnation, str(self._end), landed), tuple(self._seen), self._bytes
        )
        self._start_piece()
        return piece

    def acknowledge(self, point: ResumePoint) -> None:
        with self._database.changed:
            self._require_connection()
            self._database.confirm(self._name, int(point.token))

    def keep_alive(self) -> None:
        self._require_connection()

    def close(self) -> None:
        with self._database.changed:
            slot = self._database.slots.get(self._name)
            if slot and self._connection == self._database.connections:
                slot.is_taken = False

    def _require_connection(self) -> None:
        if self._connection != self._database.connections:
            raise SourceError(
                f"source {self._name}: the connection to the memory database is lost", next_step="run capture again"
            )


def _acquire_slot(database: MemoryDatabase, name: str, resume: ResumePoint | None) -> int:
    """Acquire the slot and return where to start.

    Raises PrerequisitesNotMet or PositionLost if the slot is missing or past ``resume``, SourceError if it is in use.
    """
    slot = database.slots.get(name)
    if slot is None and resume is None:
        raise PrerequisitesNotMet(f"source {name}: there is no slot of that name", next_step="call make_slot")
    if slot is None:
        raise PositionLost(f"source {name}: the slot is lost, so the log after it is a gap", next_step=ACCEPT_GAP)
    if slot.is_taken:
        raise SourceError(f"source {name}: the slot is in use by another stream", next_step="stop it")
    if resume is not None and slot.confirmed > int(resume.token):
        raise PositionLost(
            f"source {name}: the slot's position is after {resume.token} where landing ends: the log between is a gap",
            next_step=ACCEPT_GAP,
        )
    slot.is_taken = True
    return int(resume.token) if resume else slot.confirmed
