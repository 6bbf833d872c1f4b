"""The log of a memory database as a stream: framed, never decoded.

Promises what every LogStream promises. Unlike a server's, this log is there to be looked into, so that nothing need
be held back to learn which row is a transaction's last.
"""

from __future__ import annotations

import time

import pyarrow as pa

from dblake.core.errors import ACCEPT_GAP, PositionLost, PrerequisitesNotMet, SourceError
from dblake.core.names import TableFilter, split_qualified
from dblake.core.position import Position, ResumePoint
from dblake.core.schema import TableSchema
from dblake.core.source import LogPiece, WatermarkSeen
from dblake.landing.columns import CAPTURED, JSON, PGOUTPUT, ROW, SCHEMA, TRUNCATE
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.tables import LoggedChange, LoggedTransaction


class MemoryLogStream:
    """See LogStream for the methods. A token is the end of a transaction, as a number in text; ``name`` is the slot."""

    def __init__(
        self, database: MemoryDatabase, name: str, wanted: TableFilter, resume: ResumePoint | None, incarnation: int
    ) -> None:
        self._database, self._name, self._wanted, self._incarnation = database, name, wanted, incarnation
        with database.changed:
            self._end = _take_slot(database, name, resume)
            self._connection = database.connections
        self._skip_to = resume.landed if resume else None
        self._sent = 0
        self._known: dict[str, str] = {}
        self.start = ResumePoint(incarnation, str(self._end), self._skip_to)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[dict[str, object]] = []
        self._seen: list[WatermarkSeen] = []
        self._bytes = 0
        self._from = (self._end, self._sent)

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        until = time.monotonic() + seconds
        with self._database.changed:
            while True:
                self._require_connection()
                full = self._gather(max_bytes, max_rows)
                left = until - time.monotonic()
                if full or left <= 0:
                    return self._piece() if self._from != (self._end, self._sent) else None
                self._database.changed.wait(left)

    def _gather(self, max_bytes: int, max_rows: int) -> bool:
        """Takes in what there is; True if a limit was reached."""
        for txn in self._database.log:
            if txn.end <= self._end:
                continue
            captured = [n for n, change in enumerate(txn.changes) if self._captured(change.schema)]
            for number in range(self._sent, len(txn.changes)):
                if self._bytes >= max_bytes or len(self._rows) >= max_rows:
                    return True
                self._take(txn, number, is_last=bool(captured) and number == captured[-1])
                self._sent = number + 1
            self._end, self._sent = txn.end, 0
        return self._bytes >= max_bytes or len(self._rows) >= max_rows

    def _take(self, txn: LoggedTransaction, number: int, *, is_last: bool) -> None:
        change, position = txn.changes[number], Position(self._incarnation, txn.lsn, number * 2)
        if self._skip_to is not None and position <= self._skip_to:
            return
        if change.schema.table == self._database.watermark_table:
            if change.row is not None:
                self._seen.append(WatermarkSeen(
                    int(change.row["id"] or 0), change.row["value"] or "", position, txn.txid, txn.committed_at
                ))
            return
        if not self._captured(change.schema):
            return
        self._describe(txn, change.schema, position)
        self._bytes += len(change.payload)
        self._rows.append(self._row(txn, change, position) | {"last_in_txn": is_last})

    def _captured(self, schema: TableSchema) -> bool:
        return schema.table != self._database.watermark_table and self._wanted(*split_qualified(schema.table))

    def _row(self, txn: LoggedTransaction, change: LoggedChange, position: Position) -> dict[str, object]:
        return {
            "incarnation": position.incarnation, "lsn": position.lsn, "seq": position.seq,
            "kind": TRUNCATE if change.truncate else ROW, "table": change.schema.table,
            "schema_id": change.schema.schema_id, "txid": txn.txid, "committed_at": txn.committed_at,
            "last_in_txn": False, "format": PGOUTPUT, "payload": change.payload,
        }

    def _describe(self, txn: LoggedTransaction, schema: TableSchema, position: Position) -> None:
        """A schema row before the first row of a table in this stream, and after each change of it."""
        if self._known.get(schema.table) != schema.schema_id:
            self._known[schema.table] = schema.schema_id
            row = self._row(txn, LoggedChange(schema, schema.to_json().encode()), position)
            self._rows.append(row | {"kind": SCHEMA, "format": JSON})

    def _piece(self) -> LogPiece:
        landed = None
        if self._sent:
            inside = next(txn for txn in self._database.log if txn.end > self._end)
            landed = Position(self._incarnation, inside.lsn, (self._sent - 1) * 2)
        rows = pa.Table.from_pylist(self._rows, schema=CAPTURED)
        piece = LogPiece(
            rows, ResumePoint(self._incarnation, str(self._end), landed), tuple(self._seen), self._bytes
        )
        self._clear()
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
                slot.taken = False

    def _require_connection(self) -> None:
        if self._connection != self._database.connections:
            raise SourceError(
                f"source {self._name}: the connection to the memory database is gone", next_step="run again"
            )


def _take_slot(database: MemoryDatabase, name: str, resume: ResumePoint | None) -> int:
    """Where the slot can start; refuses by name a slot that lost the place."""
    slot = database.slots.get(name)
    if slot is None and resume is None:
        raise PrerequisitesNotMet(f"source {name}: there is no slot of that name", next_step="make_slot makes it")
    if slot is None:
        raise PositionLost(f"source {name}: the slot is gone, so the log after it is a gap", next_step=ACCEPT_GAP)
    if slot.taken:
        raise SourceError(f"source {name}: the slot is taken by another stream", next_step="stop the other capture")
    if resume is not None and slot.confirmed > int(resume.token):
        raise PositionLost(
            f"source {name}: the slot stands after {resume.token} where landing ends: the log between is a gap",
            next_step=ACCEPT_GAP,
        )
    slot.taken = True
    return int(resume.token) if resume else slot.confirmed
