"""Watermarks and heartbeats: rows of the watermark table, or transactional messages in the log.

Place: below the chunk reader, which writes them on the primary and shows that a chunk has its low watermark. Guarantee:
``low_seen`` is an expression on the chunk's own snapshot, or on the session that saw the watermark, so that a chunk
that another server returned is recognized. Both kinds have the position and order of their transaction in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.base.core.errors import SourceError
from dblake.base.core.source import HEARTBEAT_ROW
from dblake.base.core.source.heartbeats import NAME_CHARS, unchained_heartbeat
from dblake.ingest.source.postgres import pgoutput
from dblake.ingest.source.postgres.capture_objects import MESSAGE_PREFIX, WATERMARK_TABLE
from dblake.ingest.source.postgres.settings import PostgresSettings

FIRST_MESSAGES_VERSION = 140000
"""The first version whose pgoutput sends logical messages."""


@dataclass(frozen=True, slots=True)
class MarkPlace:
    """Where the last watermark of a chunk reader is: its transaction, and an LSN behind its commit ("" if unused)."""

    value: str
    txid: str
    lsn: str


class MarkWriter(Protocol):
    """Watermarks on one connection. ``cur`` is a cursor on it."""

    def mark(self, cur: cursor, reader: int, value: str) -> None:
        """Write a watermark and commit."""

    def beat(self, cur: cursor, name: str) -> None:
        """Write a heartbeat and commit."""

    def read(self, cur: cursor, reader: int) -> str:
        """Return a reader's last watermark if this server shows it; empty for heartbeats that no row has."""

    def low_seen(self, reader: int) -> sql.Composable:
        """Return the expression of the watermark that a chunk's snapshot shows, NULL for none."""


class TableWatermarks:
    """Rows of the watermark table; see MarkWriter for the methods."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._source = settings.name
        self._table = sql.Identifier(settings.watermark_schema, WATERMARK_TABLE)

    def mark(self, cur: cursor, reader: int, value: str) -> None:
        self._update(cur, reader, sql.SQL("%s"), value)

    def beat(self, cur: cursor, name: str) -> None:
        self._update(cur, HEARTBEAT_ROW, sql.SQL(f"%s || left(coalesce(value, ''), {NAME_CHARS})"), name)

    def read(self, cur: cursor, reader: int) -> str:
        cur.execute(sql.SQL("SELECT value FROM {} WHERE id = %s").format(self._table), (reader,))
        self._require_row(cur, reader)
        return cur.fetchone()[0] or ""

    def low_seen(self, reader: int) -> sql.Composable:
        return sql.SQL("(SELECT value FROM {} WHERE id = {})").format(self._table, sql.Literal(reader))

    def _update(self, cur: cursor, reader: int, value_sql: sql.SQL, value: str) -> None:
        cur.execute(sql.SQL("UPDATE {} SET value = {} WHERE id = %s").format(self._table, value_sql), (value, reader))
        self._require_row(cur, reader)

    def _require_row(self, cur: cursor, reader: int) -> None:
        if cur.rowcount != 1:
            raise SourceError(
                f"source {self._source}: the watermark table has no row {reader}",
                next_step="run preflight --init, which inserts it",
            )


class MessageWatermarks:
    """Transactional messages in the log; see MarkWriter for the methods.

    ``places`` is shared by the connections to a primary and to its standby. A standby has the watermark once it has
    replayed the log behind it; no row shows that, so its session is recognized instead.
    """

    def __init__(self, settings: PostgresSettings, places: dict[int, MarkPlace]) -> None:
        self._places = places
        self._is_replicated = settings.replica is not None
        self._seen: dict[int, tuple[str, int]] = {}

    def mark(self, cur: cursor, reader: int, value: str) -> None:
        txid, lsn = self._emit(cur, reader, value), ""
        if self._is_replicated:
            cur.execute("SELECT pg_current_wal_insert_lsn()::text")
            (lsn,) = cur.fetchone()
        self._places[reader] = MarkPlace(value, txid, lsn)

    def beat(self, cur: cursor, name: str) -> None:
        self._emit(cur, HEARTBEAT_ROW, unchained_heartbeat(name))

    def read(self, cur: cursor, reader: int) -> str:
        mark = self._places.get(reader)
        if mark is None or not mark.lsn:
            return ""
        cur.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn, pg_backend_pid()", (mark.lsn,))
        is_replayed, session = cur.fetchone()
        if not is_replayed:
            return ""
        self._seen[reader] = mark.value, session
        return mark.value

    def low_seen(self, reader: int) -> sql.Composable:
        mark, (seen, session) = self._places.get(reader), self._seen.get(reader, ("", 0))
        if mark is None:
            return sql.SQL("NULL")
        if seen == mark.value:
            return sql.SQL("CASE WHEN pg_backend_pid() = {} THEN {} END").format(
                sql.Literal(session), sql.Literal(seen)
            )
        # A standby's snapshot does not list the transactions that it does not show.
        return sql.SQL(
            "CASE WHEN NOT pg_is_in_recovery() AND pg_visible_in_snapshot({}::xid8, pg_current_snapshot()) THEN {} END"
        ).format(sql.Literal(mark.txid), sql.Literal(mark.value))

    def _emit(self, cur: cursor, reader: int, value: str) -> str:
        """Write a message in a transaction of its own; return its 64-bit id."""
        cur.execute(
            "SELECT pg_current_xact_id()::text, pg_logical_emit_message(true, %s, %s)",
            (MESSAGE_PREFIX, f"{reader} {value}"),
        )
        return str(cur.fetchone()[0])


def open_watermarks(settings: PostgresSettings, places: dict[int, MarkPlace]) -> MarkWriter:
    """Return the source's watermarks for one connection."""
    return MessageWatermarks(settings, places) if settings.watermarks == "messages" else TableWatermarks(settings)


def parse_watermark_message(payload: bytes) -> tuple[int, str] | None:
    """Return reader and value of a watermark in a Message of the log; None if it is another one."""
    parsed = pgoutput.parse_message(payload)
    if parsed is None or parsed[0] != MESSAGE_PREFIX:
        return None
    reader, _, value = parsed[1].decode(errors="replace").partition(" ")
    return (int(reader), value) if reader.isascii() and reader.isdecimal() else None
