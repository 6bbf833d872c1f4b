"""From what the log says to landing rows: what has come since the last piece, in order, and where it can be cut.

A row here is one rows event, a schema, or a statement about a captured table. Work is done per event; a piece becomes
Arrow columns when it is cut. Promises that a row is called its transaction's last only once the transaction's end has
come, that rows of an XA transaction come with its commit or never, and that what had landed when the stream began
does not come again. How the log is read, and which transactions there are, is left to ``transactions``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from dblake.core.errors import ACCEPT_GAP, PositionLost, Unsupported
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.source import WatermarkSeen
from dblake.landing.columns import BINLOG_ROWS, JSON, ROW, SCHEMA
from dblake.source.mysql import watermarks
from dblake.source.mysql.events import Query
from dblake.source.mysql.rows import Rows, What
from dblake.source.mysql.runs import Framed

SEQ_BITS = 20
"""A rows event's seq is its number in the transaction with this many bits to spare, which decoding fills."""
_ALL = 1 << 62
"""A seq after any row's."""
_MOST_HELD = 256 << 20
"""Bytes of rows kept for XA transactions that are prepared, all together."""


@dataclass(slots=True)
class Prepared:
    """An XA transaction between its preparation and its end. ``before`` is a token from which it would come again."""

    rows: list[tuple[int, TableSchema, bytes]] = field(default_factory=list)
    bytes: int = 0
    before: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """What ``Gathered`` gives out. ``landed`` is set if the stream cannot be resumed at its token alone."""

    rows: pa.Table
    seen: tuple[WatermarkSeen, ...]
    landed: Position | None
    bytes: int


class Gathered:
    """Rows of whole transactions and of the one that is open. Call ``begin``, any number of rows, ``commit``."""

    def __init__(self, incarnation: int, skip_to: Position | None) -> None:
        self._incarnation = incarnation
        self._skip_to = skip_to
        self._rows = Rows(incarnation)
        self._schema: TableSchema | None = None
        self._code = 0
        self._lasts: list[int] = []
        self._seen: list[WatermarkSeen] = []
        self._told: dict[str, str] = {}
        self._bytes = self._count = self._max_bytes = self._max_rows = 0
        self._prepared: dict[str, Prepared] = {}
        self._last_lsn = 0
        self._open = False
        self._clear()

    def _clear(self) -> None:
        """Forgets the open transaction; its rows are left as they are."""
        self._open = False
        self._opened = len(self._rows)
        self._lsn = self._committed_at = self._number = 0
        self._undecided: int | None = None
        self._undecided_bytes = 0
        self._rows_in_it = False
        self._holding: Prepared | None = None
        self._skip_seq = -1
        self._parted = False

    @property
    def has_rows(self) -> bool:
        """True if the open transaction has changed captured tables."""
        return self._rows_in_it

    @property
    def oldest_prepared(self) -> str | None:
        """The token before the first XA transaction that has yet to end."""
        return next((prepared.before for prepared in self._prepared.values()), None)

    def limit(self, max_bytes: int, max_rows: int) -> None:
        """From now on a piece is full if it has that much."""
        self._max_bytes, self._max_rows = max_bytes, max_rows

    @property
    def full(self) -> bool:
        """True if what could be given out now reaches a limit."""
        # A piece without a row, schemas apart, would bring nobody on who starts again after each.
        rows = self._count - (self._undecided is not None)
        return rows > 0 and (rows >= self._max_rows or self._bytes - self._undecided_bytes >= self._max_bytes)

    @property
    def room(self) -> tuple[int, int]:
        """How many bytes and rows make a piece full; none if rows may not come together now."""
        if self._open or self._skip_to is not None:
            return 0, 0
        return self._max_bytes - self._bytes, self._max_rows - self._count

    def begin(self, lsn: int, committed_at: int) -> None:
        """A transaction begins."""
        self._clear()
        self._open = True
        self._lsn, self._committed_at = lsn, committed_at
        if self._skip_to is None:
            return
        if lsn < self._skip_to.lsn:
            self._skip_seq = _ALL
        elif lsn == self._skip_to.lsn:
            self._skip_seq, self._parted = self._skip_to.seq, True
        else:
            raise PositionLost(
                "landing holds rows of a transaction that the log does not have any more: a gap",
                next_step=ACCEPT_GAP,
            )

    def row(self, schema: TableSchema, payload: bytes) -> None:
        """A rows event of a captured table."""
        seq = self._number << SEQ_BITS
        self._number += 1
        self._rows_in_it = True
        if self._holding is not None:
            self._hold(self._holding, seq, schema, payload)
        else:
            self._append_row(seq, schema, payload)

    def _append_row(self, seq: int, schema: TableSchema, payload: bytes) -> None:
        if seq <= self._skip_seq:
            return
        if schema is not self._schema:
            self._tell(seq, schema)
        self._append(seq, self._code, payload)

    def _tell(self, seq: int, schema: TableSchema) -> None:
        """What follows is of another schema than the row before; lands it if it is news."""
        table, schema_id = schema.table, schema.schema_id
        if self._told.get(table) != schema_id:
            self._told[table] = schema_id
            said = schema.to_json().encode()
            self._put(seq, self._rows.code(What(SCHEMA, table, schema_id, JSON)), said)
            self._bytes += len(said)
        self._schema, self._code = schema, self._rows.code(What(ROW, table, schema_id, BINLOG_ROWS))

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

    def told(self, schema: TableSchema) -> bool:
        """True if the next row of this schema needs no word of it."""
        return self._told.get(schema.table) == schema.schema_id

    def together(self, framed: Framed, lsn_of_file: int) -> None:
        """Whole transactions framed at once, within ``room``."""
        if len(framed.payloads):
            codes = [
                self._rows.code(What(ROW, schema.table, schema.schema_id, BINLOG_ROWS)) if schema else -1
                for schema in framed.schemas
            ]
            self._rows.put_together(
                self._lasts, lsn_of_file + framed.offsets, framed.numbers << SEQ_BITS,
                np.array(codes, np.int64)[framed.tables], framed.times, framed.lasts, framed.payloads,
            )
            self._lasts = []
            self._bytes, self._count = self._rows.sizes()
        for offset, number, time, updates in framed.watermarks:
            self._seen += _marks(updates, Position(self._incarnation, lsn_of_file + offset, number << SEQ_BITS), time)
        self._last_lsn = lsn_of_file + framed.last_begin

    def pass_over(self) -> None:
        """A rows event of a table that is not captured: it counts, so that numbers do not depend on what is."""
        self._number += 1

    def watermark(self, event: bytes) -> None:
        """A rows event that updates the watermark table."""
        first = self._number << SEQ_BITS
        self._number += 1
        if self._holding is not None:
            return
        told = _marks(watermarks.updates(event), Position(self._incarnation, self._lsn, first), self._committed_at)
        self._seen += [mark for mark in told if mark.position.seq > self._skip_seq]

    def statement(self, kind: str, tables: Mapping[str | None, Mapping[str, bool]], query: Query) -> None:
        """A statement about captured tables, or about none that can be named, and what it does to each."""
        first = self._number << SEQ_BITS
        self._number += 1
        said = {"statement": query.text, "default_schema": query.default_schema}
        for n, (table, does) in enumerate(tables.items()):
            self._rows_in_it = True
            if first + 2 * n > self._skip_seq:
                told = self._told.get(table) if table else None
                payload = json.dumps({**said, **does}).encode()
                self._append(first + 2 * n, self._rows.code(What(kind, table, told, JSON)), payload)

    def commit(self) -> None:
        """The open transaction ends; its last row is now known."""
        if self._undecided is not None:
            self._lasts.append(self._undecided)
        self._end()

    def _end(self) -> None:
        self._last_lsn = self._lsn
        if self._skip_to is not None and self._lsn >= self._skip_to.lsn:
            self._skip_to = None
        self._open, self._undecided, self._undecided_bytes = False, None, 0

    def hold(self) -> None:
        """The open transaction is an XA one, whose rows must wait."""
        self._holding = Prepared()

    def _hold(self, prepared: Prepared, seq: int, schema: TableSchema, payload: bytes) -> None:
        prepared.rows.append((seq, schema, payload))
        prepared.bytes += len(payload)
        if prepared.bytes + sum(other.bytes for other in self._prepared.values()) > _MOST_HELD:
            raise Unsupported(
                f"XA transactions that are prepared but not committed have more than {_MOST_HELD >> 20} MiB of rows",
                next_step="commit or roll back those that XA RECOVER lists, and commit in smaller steps;"
                " capture --accept-gap starts behind them",
            )

    def prepare(self, name: str, before: str) -> None:
        """The open XA transaction is prepared; ``before`` is the token of where it began."""
        if self._holding is not None:
            self._holding.before = before
            self._prepared[name] = self._holding
        self._end()

    def commit_held(self) -> None:
        """The open XA transaction is prepared and committed in one."""
        if self._holding is not None:
            self._give_out(self._holding)
        self.commit()

    def commit_prepared(self, name: str) -> None:
        """The open transaction commits one that was prepared before. Raises KeyError if the stream saw none."""
        self._give_out(self._prepared.pop(name))
        self.commit()

    def roll_back(self, name: str | None = None) -> None:
        """The open transaction, or the prepared one that it is about, leaves nothing."""
        if name is not None:
            self._prepared.pop(name, None)
        self._end()

    def break_off(self) -> bool:
        """The open transaction ends nowhere, in a crash of the server. False if a part of it has been given out."""
        self._rows.drop(self._opened)
        # Schemas may have gone with it.
        self._told.clear()
        self._schema = None
        self._seen = [mark for mark in self._seen if mark.position.lsn != self._lsn]
        self._bytes, self._count = self._rows.sizes()
        parted = self._parted
        self._clear()
        return not parted

    def _give_out(self, prepared: Prepared) -> None:
        for seq, schema, payload in prepared.rows:
            self._append_row(seq, schema, payload)

    def cut(self, *, inside: bool) -> Cut:
        """Takes out all whole transactions, and ``inside`` of an open one all but the row that may be its last."""
        place, landed, kept_marks = len(self._rows), None, list[WatermarkSeen]()
        if self._open and inside:
            place = place if self._undecided is None else self._undecided
            landed = self._framed_to()
            kept_marks = [m for m in self._seen if landed is not None and m.position > landed]
            self._parted = self._parted or landed is not None
        elif self._open:
            place = self._opened
            kept_marks = [m for m in self._seen if m.position.lsn == self._lsn]
        if landed is None and self._prepared and self._last_lsn:
            landed = Position(self._incarnation, self._last_lsn, _ALL)
        if self._skip_to is not None:
            landed = self._skip_to if landed is None else max(landed, self._skip_to)
        rows = self._rows.take(place, self._lasts)
        seen = tuple(self._seen[: len(self._seen) - len(kept_marks)])
        left, self._count = self._rows.sizes()
        cut = Cut(rows, seen, landed, self._bytes - left)
        self._lasts, self._seen, self._bytes = [], kept_marks, left
        self._opened = max(0, self._opened - place)
        self._undecided = None if self._undecided is None else self._undecided - place
        return cut

    def _framed_to(self) -> Position | None:
        """Up to where the open transaction can be skipped once what is before its undecided row has landed."""
        if self._holding is not None:
            return None
        end = self._number << SEQ_BITS if self._undecided is None else self._rows.seqs[self._undecided]
        return Position(self._incarnation, self._lsn, end - 1) if end else None


def _marks(updates: Iterable[tuple[int, str]], first: Position, committed_at: int) -> list[WatermarkSeen]:
    """The watermarks of one event, whose first row stands at ``first``."""
    return [
        WatermarkSeen(reader, value, replace(first, seq=first.seq + 2 * n), None, committed_at)
        for n, (reader, value) in enumerate(updates)
    ]
