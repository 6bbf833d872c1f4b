"""The log of a PostgreSQL database: a replication slot read through pgoutput, framed and not decoded.

Guarantee: transactions come in commit order, each row at the position that its transaction's Begin message gives; a
stream opened at a resume point repeats no row and skips none. Deciding what has landed, and so what may be
acknowledged, is for capture.
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack

import psycopg2
from psycopg2.extensions import connection, cursor
from psycopg2.extras import REPLICATION_LOGICAL

from dblake.base.core.errors import SourceError
from dblake.base.core.log_places import lsn_number
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import HEARTBEAT_ROW, LogPiece
from dblake.ingest.source.postgres import ddl_trigger, pgoutput
from dblake.ingest.source.postgres.connection import connect_replication
from dblake.ingest.source.postgres.driver_errors import translate_errors
from dblake.ingest.source.postgres.pieces import PieceBuilder
from dblake.ingest.source.postgres.relations import Relations
from dblake.ingest.source.postgres.replay import HeldHeartbeats, Replay
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.slot import resolve_start
from dblake.ingest.source.postgres.timeline import TimelineGuard
from dblake.ingest.source.postgres.watermarks import parse_watermark_message
from dblake.payloads.formats import pgoutput as letters

_KEEP_ALIVE_SECONDS = 0.5
"""How often the stream sends a keepalive without being asked to."""
_MESSAGES_PER_CHECK = 256
"""Messages read between two checks of the limits and the clock."""
_MAX_UNFRAMED_BYTES = 2 << 20
"""So much is framed at once: an unframed message takes twice its size, and framing copies it."""
_GATHER_SECONDS = 0.001
"""The server sends message by message: waking up for each would cost more than reading it."""


class PgLogStream:
    """A started replication stream; see LogStream. Opens the slot on construction and raises as ``open_log`` does."""

    def __init__(
        self, settings: PostgresSettings, conn: connection, resume: ResumePoint | None, incarnation: int
    ) -> None:
        self._settings = settings
        self._sql = conn
        with translate_errors(settings):
            cur = conn.cursor()
            slot = resolve_start(cur, settings, resume)
            tables = Relations(cur, settings.table_filter, settings.watermark_schema)
            cur.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            near_txid = int(cur.fetchone()[0])
        self.start = ResumePoint(incarnation, slot.token, resume.landed if resume else None)
        self._pieces = PieceBuilder(tables, self.start, near_txid)
        self._replay = Replay(self.start, tables) if resume and not settings.has_watermark_table else None
        self._held = HeldHeartbeats()
        self._guard = TimelineGuard(settings) if settings.primary else None
        with ExitStack() as undo:
            # Retries would leave WAL senders of the server behind.
            if self._guard:
                undo.callback(self._guard.close)
            self._connection = connect_replication(settings)
            undo.callback(self._connection.close)
            self._start(slot.confirmed if self._replay else slot.token)
            undo.pop_all()

    def _start(self, token: str) -> None:
        # psycopg2 confirms more than it was given: once the confirmed LSN covers the last message's LSN, a keepalive
        # confirms the server's position, and rows of a later transaction can have lower LSNs than the commit of an
        # earlier one that has not landed. So the reading cursor never confirms, and a second one, which never reads,
        # does. Before the first message the initial LSN covers it, too: a server that requests a reply while it skips
        # uncaptured log would receive its own position as confirmed, and the next start would find a gap. So the stream
        # sends a keepalive before the server requests one.
        self._last_keep_alive = time.monotonic()
        self._confirmer = self._connection.cursor()
        with translate_errors(self._settings):
            try:
                self._reader = self._start_reader(token)
            except psycopg2.errors.ObjectInUse as error:
                raise SourceError(
                    f"source {self._settings.name}: slot {self._settings.slot} is in use by another process",
                    next_step="stop the other capture of this source, or wait until the server drops its connection",
                ) from error

    def _start_reader(self, token: str) -> cursor:
        reader = self._connection.cursor()
        reader.start_replication(
            slot_name=self._settings.slot, slot_type=REPLICATION_LOGICAL, start_lsn=token,
            options=pgoutput.stream_options(self._settings), decode=False, status_interval=3600,
        )
        return reader

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        piece = self._read_piece(max_bytes=max_bytes, max_rows=max_rows, seconds=seconds)
        if piece and self._guard:
            self._guard.require_unchanged()
        return piece

    def _read_piece(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        until = time.monotonic() + seconds
        pieces = self._pieces
        with translate_errors(self._settings):
            while True:
                is_drained = self._read_messages()
                if time.monotonic() - self._last_keep_alive >= _KEEP_ALIVE_SECONDS:
                    self.keep_alive()
                if self._replay and self._replay.is_over:
                    return self._end_replay(self._replay)
                if pieces.is_full(max_bytes, max_rows):
                    return pieces.cut(inside=True)
                if pieces.unframed_bytes >= _MAX_UNFRAMED_BYTES:
                    pieces.frame_pending()
                remaining = until - time.monotonic()
                if remaining <= 0:
                    return pieces.cut(inside=False) if pieces.committed else None
                if is_drained and (ready := select.select([self._connection, self._sql], [], [], remaining)[0]):
                    if self._sql in ready:
                        self._require_running()
                    time.sleep(min(_GATHER_SECONDS, remaining))

    def _end_replay(self, replay: Replay) -> LogPiece:
        self._replay = None
        if replay.heartbeat_lsn is not None:
            self._held.add(replay.heartbeat_lsn)
        return replay.build_piece()

    def _read_replayed(self, replay: Replay) -> bool:
        """Read messages before the start; return True if the connection is drained."""
        for _ in range(_MESSAGES_PER_CHECK):
            message = self._reader.read_message()
            if message is None:
                return True
            if not replay.take(message.payload):
                self._pieces.run.begin(message.payload)
            if replay.is_over:
                return False
        return False

    def _add_message(self, payload: bytes) -> None:
        """Add a message of ``pg_logical_emit_message`` that is a watermark or a DDL statement."""
        pieces = self._pieces
        if not self._settings.has_watermark_table and (mark := parse_watermark_message(payload)):
            pieces.add_watermark(*mark)
            if mark[0] == HEARTBEAT_ROW and pieces.run.carried:
                self._held.add(pieces.run.carried.lsn)
        elif self._settings.log_ddl and (statement := ddl_trigger.parse_message(payload, self._settings.table_filter)):
            pieces.add_statement(statement)

    def _read_messages(self) -> bool:
        """Read until the connection is drained or the limits are due for a check; return True if it is drained."""
        if self._replay:
            return self._read_replayed(self._replay)
        read = self._reader.read_message
        pieces, run = self._pieces, self._pieces.run
        append = run.messages.append
        size = 0
        try:
            for _ in range(_MESSAGES_PER_CHECK):
                message = read()
                if message is None:
                    return True
                payload = message.payload
                kind = payload[0]
                if kind == letters.UPDATE or kind == letters.INSERT or kind == letters.DELETE:  # noqa: PLR1714 - the fastest form, once per message
                    append(payload)
                    size += len(payload)
                elif kind == letters.BEGIN:
                    run.begin(payload)
                elif kind == letters.COMMIT:
                    run.open = False
                    pieces.committed = payload
                elif kind == letters.TRUNCATE:
                    run.messages.extend(pgoutput.split_truncate(payload))
                elif kind in (letters.RELATION, letters.MESSAGE):
                    if kind == letters.RELATION:
                        pieces.register_table(payload)
                    else:
                        self._add_message(payload)
                    run = pieces.run
                    append = run.messages.append
            return False
        finally:
            pieces.count_bytes(size)

    def acknowledge(self, point: ResumePoint) -> None:
        with translate_errors(self._settings):
            self._confirmer.send_feedback(flush_lsn=self._held.releasable(lsn_number(point.token)), force=True)

    def keep_alive(self) -> None:
        self._last_keep_alive = time.monotonic()
        with translate_errors(self._settings):
            if select.select([self._sql], [], [], 0.0)[0]:
                self._require_running()
            self._confirmer.send_feedback(force=True)
        if self._guard:
            self._guard.require_unchanged()

    def _require_running(self) -> None:
        """Close the stream and raise the server's error if it has ended the catalog connection.

        A server that shuts down ends its sessions first and then waits, without limit, until each walsender's reader
        has confirmed all log; log behind the last landed commit is not confirmed. Without a reader it does not wait,
        and the slot keeps what is not confirmed.
        """
        try:
            with self._sql.cursor() as cur:
                cur.execute("SELECT")
        except psycopg2.Error:
            self._connection.close()
            raise

    def close(self) -> None:
        for conn in (self._connection, self._sql):
            conn.close()
        if self._guard:
            self._guard.close()
