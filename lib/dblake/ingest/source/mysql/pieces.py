"""Landing rows of the log since the last piece, in order, and where they can be cut.

Below ``transaction_state``, above ``rows``. A row here is one rows event, a schema, or a statement about a captured
table; a piece becomes Arrow columns when it is cut. Guarantees:

- A row is its transaction's last (``last_in_txn``) only once the transaction's end has been read.
- Rows of an XA transaction land with its commit, or never.
- Rows that had landed before the stream began do not land twice.

Where transactions begin and end is left to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dblake.base.core.errors import ACCEPT_GAP, PositionLost
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import WatermarkSeen
from dblake.ingest.source.mysql import watermarks
from dblake.ingest.source.mysql.events import Query
from dblake.ingest.source.mysql.prepared import PreparedTransaction, PreparedTransactions
from dblake.ingest.source.mysql.rows import RowKind, Rows
from dblake.ingest.source.mysql.runs import Framed
from dblake.landing.columns import BINLOG_ROWS, JSON, ROW, SCHEMA

SEQ_BITS = 20
"""A rows event's seq is its number in the transaction, shifted by this many bits, which decoding fills."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows and watermarks of a piece. ``landed`` is set if the stream cannot be resumed at its token alone."""

    rows: pa.Table
    watermarks: tuple[WatermarkSeen, ...]
    landed: Position | None
    bytes: int


class PieceBuilder:
    """Rows of whole transactions and of the open one. Call ``begin``, then append any number of rows, then ``commit``.

    ``skip_to`` is the last position that landing holds where that is not the end of a whole transaction.
    """

    def __init__(self, incarnation: int, skip_to: Position | None) -> None:
        self._incarnation = incarnation
        self._skip_to = skip_to
        self._rows = Rows(incarnation)
        self._schema: TableSchema | None = None
        self._code = 0
        self._lasts: list[int] = []
        self._watermarks: list[WatermarkSeen] = []
        self._landed_schemas: dict[str, str] = {}
        """The schema id of each table that has a schema row, by table."""
        self._bytes = self._count = self._max_bytes = self._max_rows = 0
        self._prepared = PreparedTransactions()
        self._last_lsn = 0
        self._is_open = False
        self._reset_transaction()

    def _reset_transaction(self) -> None:
        """Reset what belongs to the open transaction; its rows stay."""
        self._is_open = False
        self._first_row = len(self._rows)
        self._lsn = self._committed_at = self._number = 0
        self._undecided: int | None = None
        """The newest row of the open transaction, which may be its last one."""
        self._undecided_bytes = 0
        self._has_rows = False
        self._prepared.open = None
        self._skip_seq = -1
        self._is_partly_emitted = False

    @property
    def has_rows(self) -> bool:
        """True if the open transaction has changed captured tables."""
        return self._has_rows

    @property
    def oldest_prepared(self) -> str | None:
        """The resume token from before the oldest XA transaction that is still prepared."""
        return self._prepared.oldest_token

    def limit(self, max_bytes: int, max_rows: int) -> None:
        """Set the size at which a piece is full."""
        self._max_bytes, self._max_rows = max_bytes, max_rows

    @property
    def is_full(self) -> bool:
        """True if what could be cut now reaches a limit."""
        # A piece of schemas alone does not count: a stream that is resumed after each would make no progress.
        rows = self._count - (self._undecided is not None)
        return rows > 0 and (rows >= self._max_rows or self._bytes - self._undecided_bytes >= self._max_bytes)

    @property
    def room(self) -> tuple[int, int]:
        """The bytes and rows until the piece is full; none if a run of transactions cannot be appended now."""
        if self._is_open or self._skip_to is not None:
            return 0, 0
        return self._max_bytes - self._bytes, self._max_rows - self._count

    def begin(self, lsn: int, committed_at: int) -> None:
        """Begin a transaction; ``committed_at`` is in microseconds. Raises PositionLost if a part of one was lost."""
        self._reset_transaction()
        self._is_open = True
        self._lsn, self._committed_at = lsn, committed_at
        if self._skip_to is None:
            return
        if lsn < self._skip_to.lsn:
            self._skip_seq = Position.MAX
        elif lsn == self._skip_to.lsn:
            self._skip_seq, self._is_partly_emitted = self._skip_to.seq, True
        else:
            raise PositionLost(
                "landing holds rows of a transaction that the log no longer has: a gap", next_step=ACCEPT_GAP
            )

    def append_row(self, schema: TableSchema, payload: bytes) -> None:
        """Append a rows event of a captured table, or hold it in an XA transaction. Raises Unsupported if too many."""
        seq = self._number << SEQ_BITS
        self._number += 1
        self._has_rows = True
        if self._prepared.open is not None:
            self._prepared.hold(seq, schema, payload)
        else:
            self._append_captured(seq, schema, payload)

    def _append_captured(self, seq: int, schema: TableSchema, payload: bytes) -> None:
        if seq <= self._skip_seq:
            return
        if schema is not self._schema:
            self._switch_schema(seq, schema)
        self._append(seq, self._code, payload)

    def _switch_schema(self, seq: int, schema: TableSchema) -> None:
        """Append the schema of the rows that follow, unless the table's newest schema row has it."""
        table, schema_id = schema.table, schema.schema_id
        if self._landed_schemas.get(table) != schema_id:
            self._landed_schemas[table] = schema_id
            document = schema.to_json().encode()
            self._put(seq, self._rows.code(RowKind(SCHEMA, table, schema_id, JSON)), document)
            self._bytes += len(document)
        self._schema, self._code = schema, self._rows.code(RowKind(ROW, table, schema_id, BINLOG_ROWS))

    def _append(self, seq: int, code: int, payload: bytes) -> None:
        self._undecided = len(self._rows.payloads)
        self._undecided_bytes = size = len(payload)
        self._put(seq, code, payload)
        self._count += 1
        self._bytes += size

    def _put(self, seq: int, code: int, payload: bytes) -> None:
        rows = self._rows
        rows.lsns.append(self._lsn)
        rows.seqs.append(seq)
        rows.codes.append(code)
        rows.times.append(self._committed_at)
        rows.payloads.append(payload)

    def is_schema_landed(self, schema: TableSchema) -> bool:
        """Return whether the table's newest schema row has this schema, so that its rows need no other."""
        return self._landed_schemas.get(schema.table) == schema.schema_id

    def append_run(self, framed: Framed, file_lsn: int) -> None:
        """Append whole transactions that were framed at once, within ``room``."""
        if len(framed.payloads):
            codes = [
                self._rows.code(RowKind(ROW, schema.table, schema.schema_id, BINLOG_ROWS)) if schema else -1
                for schema in framed.schemas
            ]
            self._rows.append_columns(
                self._lasts, file_lsn + framed.offsets, framed.numbers << SEQ_BITS,
                np.array(codes, np.int64)[framed.tables], framed.times, framed.lasts, framed.payloads,
            )
            self._lasts = []
            self._bytes, self._count = self._rows.sizes()
        for offset, number, time, updates in framed.watermarks:
            first = Position(self._incarnation, file_lsn + offset, number << SEQ_BITS)
            self._watermarks += _watermarks_of(updates, first, time)
        self._last_lsn = file_lsn + framed.last_begin

    def skip_row(self) -> None:
        """Skip a rows event of another table; it is counted, so that numbers do not depend on the captured tables."""
        self._number += 1

    def append_watermarks(self, event: bytes) -> None:
        """Append what a rows event writes to the watermark table."""
        first = self._number << SEQ_BITS
        self._number += 1
        if self._prepared.open is not None:
            return
        position = Position(self._incarnation, self._lsn, first)
        written = _watermarks_of(watermarks.read_updates(event), position, self._committed_at)
        self._watermarks += [mark for mark in written if mark.position.seq > self._skip_seq]

    def append_statement(self, kind: str, tables: Mapping[str | None, Mapping[str, Any]], query: Query) -> None:
        """Append a statement: a row for each captured table with its effects, or one of no table (key None)."""
        first = self._number << SEQ_BITS
        self._number += 1
        document = {"statement": query.text, "default_schema": query.default_schema}
        for n, (table, effects) in enumerate(tables.items()):
            self._has_rows = True
            if first + 2 * n > self._skip_seq:
                schema_id = self._landed_schemas.get(table) if table else None
                payload = json.dumps({**document, **effects}).encode()
                self._append(first + 2 * n, self._rows.code(RowKind(kind, table, schema_id, JSON)), payload)

    def commit(self) -> None:
        """End the open transaction with its newest row as its last."""
        if self._undecided is not None:
            self._lasts.append(self._undecided)
        self._end()

    def _end(self) -> None:
        self._last_lsn = self._lsn
        if self._skip_to is not None and self._lsn >= self._skip_to.lsn:
            self._skip_to = None
        self._is_open, self._undecided, self._undecided_bytes = False, None, 0

    def hold(self) -> None:
        """Hold the rows of the open transaction, which is an XA transaction, until its end."""
        self._prepared.open = PreparedTransaction()

    def prepare(self, name: str, token: str) -> None:
        """End the open XA transaction as prepared; ``token`` is the position before it."""
        self._prepared.prepare(name, token)
        self._end()

    def commit_held(self) -> None:
        """Commit the open XA transaction, which is prepared and committed in one phase."""
        if self._prepared.open is not None:
            self._emit(self._prepared.open)
        self.commit()

    def commit_prepared(self, name: str) -> None:
        """Commit a prepared transaction as the open one. Raises KeyError if this stream did not see it prepared."""
        self._emit(self._prepared.pop(name))
        self.commit()

    def roll_back(self, name: str | None = None) -> None:
        """End the open transaction without rows; with ``name`` it rolls back a prepared one."""
        if name is not None:
            self._prepared.drop(name)
        self._end()

    def discard_open_transaction(self) -> bool:
        """Discard the open transaction, which a crash of the server left without end. False if a part has landed."""
        self._rows.drop(self._first_row)
        # Schema rows may have been among them.
        self._landed_schemas.clear()
        self._schema = None
        self._watermarks = [mark for mark in self._watermarks if mark.position.lsn != self._lsn]
        self._bytes, self._count = self._rows.sizes()
        is_partly_emitted = self._is_partly_emitted
        self._reset_transaction()
        return not is_partly_emitted

    def _emit(self, prepared: PreparedTransaction) -> None:
        for seq, schema, payload in prepared.rows:
            self._append_captured(seq, schema, payload)

    def cut(self, *, inside: bool) -> Cut:
        """Take out all whole transactions, and with ``inside`` the open one but for its newest row."""
        stop, landed, kept = len(self._rows), None, list[WatermarkSeen]()
        if self._is_open and inside:
            stop = stop if self._undecided is None else self._undecided
            landed = self._emitted_to()
            kept = [m for m in self._watermarks if landed is not None and m.position > landed]
            self._is_partly_emitted = self._is_partly_emitted or landed is not None
        elif self._is_open:
            stop = self._first_row
            kept = [m for m in self._watermarks if m.position.lsn == self._lsn]
        if landed is None and self._prepared and self._last_lsn:
            landed = Position(self._incarnation, self._last_lsn, Position.MAX)
        if self._skip_to is not None:
            landed = self._skip_to if landed is None else max(landed, self._skip_to)
        rows = self._rows.take(stop, self._lasts)
        emitted = tuple(self._watermarks[: len(self._watermarks) - len(kept)])
        rest, self._count = self._rows.sizes()
        cut = Cut(rows, emitted, landed, self._bytes - rest)
        self._lasts, self._watermarks, self._bytes = [], kept, rest
        self._first_row = max(0, self._first_row - stop)
        self._undecided = None if self._undecided is None else self._undecided - stop
        return cut

    def _emitted_to(self) -> Position | None:
        """Return up to where the open transaction is to be skipped once what precedes its newest row has landed."""
        if self._prepared.open is not None:
            return None
        end = self._number << SEQ_BITS if self._undecided is None else self._rows.seqs[self._undecided]
        return Position(self._incarnation, self._lsn, end - 1) if end else None


def _watermarks_of(updates: Iterable[tuple[int, str]], first: Position, committed_at: int) -> list[WatermarkSeen]:
    """Return the watermarks that one event writes, its first row at ``first``."""
    return [
        WatermarkSeen(reader, value, replace(first, seq=first.seq + 2 * n), None, committed_at)
        for n, (reader, value) in enumerate(updates)
    ]
