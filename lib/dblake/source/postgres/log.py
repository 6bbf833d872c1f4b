"""The log of a PostgreSQL database: a replication slot read through an output plugin, framed but not decoded.

Promises: transactions in commit order, each row at the position its transaction's Begin message gives; a stream opened
at a resume point repeats nothing and skips nothing. Deciding what has landed, and so what may be acknowledged, is
capture's business.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection, cursor
from psycopg2.extras import REPLICATION_LOGICAL

from dblake.core.errors import ACCEPT_GAP, PositionLost, PrerequisitesNotMet, SourceError
from dblake.core.names import TableFilter
from dblake.core.position import Position, ResumePoint
from dblake.core.source import LogPiece, WatermarkSeen
from dblake.source.postgres import ddl_trigger, frames, pgoutput, wal2json
from dblake.source.postgres.connection import connect_replication, explained
from dblake.source.postgres.relations import Relations, Tables
from dblake.source.postgres.settings import PostgresSettings
from dblake.source.postgres.shapes import Shapes

logger = logging.getLogger(__name__)

_PLUGINS: dict[str, tuple[frames.Plugin, Callable[[cursor, TableFilter, str], Tables]]] = {
    "pgoutput": (pgoutput, Relations), "wal2json": (wal2json, Shapes),
}

_ALIVE_SECONDS = 0.5
"""How often the server gets a sign of life from us without asking."""
_LOOK_EVERY = 256
"""Messages read between two looks at the limits and the clock."""
_FRAME_BYTES = 2 << 20
"""So much is framed at once: a message weighs twice its bytes until it is, and again as much meanwhile."""
_GATHER_SECONDS = 0.001
"""The server sends message by message: to wake up for each would cost more than to read it."""


class PgLogStream:
    """A started replication stream. Opens the slot on construction; see LogStream for the methods."""

    def __init__(
        self, settings: PostgresSettings, conn: connection, resume: ResumePoint | None, incarnation: int
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._sql = conn
        self._skip_to = resume.landed if resume else None
        self._plugin, tables = _PLUGINS[settings.plugin]
        with explained(settings):
            cur = conn.cursor()
            start = check_slot(cur, settings, resume)
            self._tables = tables(cur, settings.wanted, settings.watermark_schema)
            cur.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            self._txid_near = int(cur.fetchone()[0])
        self._token = start
        self.start = ResumePoint(incarnation, start, self._skip_to)
        self._connection = connect_replication(settings)
        self._start(start)
        self._run = frames.Run()
        self._committed: bytes | None = None
        self._sealed: list[pa.Table] = []
        self._opened = 0
        self._undecided: int | None = None
        self._seen: list[WatermarkSeen] = []
        self._rows = self._bytes = self._unframed = 0

    def _start(self, start: str) -> None:
        # psycopg2 confirms more than it was told to: once all that a cursor was told to confirm covers the last
        # message's LSN, a keepalive makes it confirm the server's position, and rows of a later transaction may well
        # have lower LSNs than an earlier, not yet landed one's commit. So the cursor that reads is told nothing, and
        # a second one, which never reads, confirms. Before the first message "nothing told" covers it, too: a server
        # that asks for a sign of life while it looks for something to send would be told that landing holds all it
        # has looked at, and the next start would find a gap. So it gets one before it asks.
        self._alive_at = time.monotonic()
        self._confirmer = self._connection.cursor()
        with explained(self._settings):
            try:
                self._reader = self._started(start)
            except psycopg2.errors.ObjectInUse as error:
                raise SourceError(
                    f"source {self._settings.name}: slot {self._settings.slot} is taken by another process",
                    next_step="stop the other capture of this source, or wait until the server drops its connection",
                ) from error

    def _started(self, start: str) -> cursor:
        """A reading cursor, with the best options that the server's plugin knows."""
        where = f"source {self._settings.name}: the server's {self._settings.plugin}"
        choices = self._plugin.options(self._settings)
        for number, options in enumerate(choices):
            reader = self._connection.cursor()
            try:
                reader.start_replication(
                    slot_name=self._settings.slot, slot_type=REPLICATION_LOGICAL, start_lsn=start, options=options,
                    decode=False, status_interval=3600,
                )
            except psycopg2.errors.InvalidParameterValue:
                continue
            except psycopg2.errors.UndefinedFile as error:
                raise PrerequisitesNotMet(f"{where} is gone", next_step="install it there again") from error
            if number:
                logger.warning("%s is of an old version: NaN and infinity of numbers come as NULL", where)
            return reader
        raise PrerequisitesNotMet(f"{where} is too old", next_step="install a newer version there")

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        until = time.monotonic() + seconds
        with explained(self._settings):
            while True:
                dry = self._read_some()
                if time.monotonic() - self._alive_at >= _ALIVE_SECONDS:
                    self.keep_alive()
                if self._bytes >= max_bytes or self._rows + len(self._run.messages) >= max_rows:
                    return self._cut(inside=True)
                if self._unframed >= _FRAME_BYTES:
                    self._seal()
                left = until - time.monotonic()
                if left <= 0:
                    return self._cut(inside=False) if self._committed else None
                if dry and select.select([self._connection], [], [], left)[0]:
                    time.sleep(min(_GATHER_SECONDS, left))

    def _read_some(self) -> bool:
        """Reads until the stream is dry or it is time to look at the limits; True if it is dry."""
        read = self._reader.read_message
        run = self._run
        append = run.messages.append
        letter = self._plugin.LETTER
        size = 0
        try:
            for _ in range(_LOOK_EVERY):
                message = read()
                if message is None:
                    return True
                payload = message.payload
                kind = payload[letter]
                if kind == pgoutput.UPDATE or kind == pgoutput.INSERT or kind == pgoutput.DELETE:
                    append(payload)
                    size += len(payload)
                elif kind == pgoutput.BEGIN:
                    run.begin(payload)
                elif kind == pgoutput.COMMIT:
                    run.open = False
                    self._committed = payload
                elif kind == pgoutput.RELATION:
                    self._described(payload)
                    run = self._run
                    append = run.messages.append
                elif kind == pgoutput.TRUNCATE:
                    run.messages.extend(self._plugin.truncates(payload))
                elif kind == pgoutput.MESSAGE:
                    self._statement(payload)
                    run = self._run
                    append = run.messages.append
            return False
        finally:
            self._bytes += size
            self._unframed += size

    def _described(self, message: bytes) -> None:
        number = self._tables.described(message)
        if number is not None:
            # Rows before this message mean the table as it was: frame them first.
            self._seal()
            self._learn(number)

    def _learn(self, number: int) -> None:
        transaction = self._run.carried
        if transaction is None:
            raise SourceError("the log described a table outside a transaction", next_step="run again")
        learned = self._tables.learn(number)
        if learned:
            position = Position(self._incarnation, transaction.lsn, transaction.number * 2)
            self._sealed.append(frames.schema_row(learned, position, transaction))

    def _statement(self, payload: bytes) -> None:
        """Takes in what an event trigger of ours says of tables; it stands before the next row, as schemas do."""
        said = ddl_trigger.told(payload, self._settings.wanted)
        if said:
            self._seal()
            transaction = self._run.carried
            assert transaction is not None, "a message in a transaction comes after its Begin"
            position = Position(self._incarnation, transaction.lsn, transaction.number * 2)
            self._sealed.append(frames.statement_rows(said, position, transaction))

    def _seal(self) -> None:
        """Frames the run, in parts where its rows tell of a table that has changed."""
        self._unframed = 0
        run, messages = self._run, frames.Messages.of(self._run.messages, self._tables)
        while (place := self._tables.new(messages.numbers)) is not None:
            before, run = run.cut(place)
            framed, messages = messages.cut(place)
            self._frame(before, framed)
            self._learn(int(messages.numbers[0]))
            run.carried = self._run.carried
        self._frame(run, messages)

    def _frame(self, run: frames.Run, messages: frames.Messages) -> None:
        """Frames a run; the next one begins inside the transaction that is open.

        What is framed of an open transaction begins with table ``_opened``, and its last captured row stands in table
        ``_undecided``, alone: only what comes tells whether it is the transaction's last.
        """
        transactions = run.transactions(self._plugin, self._txid_near)
        if len(transactions.lsn) == 0:
            if run.messages:
                raise SourceError("the log sent a row outside a transaction", next_step="run again")
            return
        rows, seen = frames.frame(
            messages, self._plugin, transactions, self._tables, self._incarnation, self._skip_to
        )
        self._seen.extend(seen)
        self._rows += rows.num_rows
        followed = rows.num_rows > 0 and rows["lsn"][0].as_py() == transactions.lsn[0]
        if self._undecided is not None and (followed or not transactions.first_open):
            if not followed:
                self._sealed[self._undecided] = frames.as_last(self._sealed[self._undecided])
            self._undecided = None
        whole, opened = frames.split(rows, int(transactions.lsn[-1])) if run.open else (rows, rows.slice(0, 0))
        self._sealed.append(whole)
        if run.begins:
            self._opened = len(self._sealed)
        if opened.num_rows:
            self._sealed += [opened.slice(0, opened.num_rows - 1), opened.slice(opened.num_rows - 1)]
            self._undecided = len(self._sealed) - 1
        last = transactions.last()
        self._txid_near = last.txid
        self._run = frames.Run(carried=last, open=True) if run.open else frames.Run()

    def _cut(self, *, inside: bool) -> LogPiece:
        """Takes out what has come: all whole transactions, and ``inside`` of an open one all but its undecided row."""
        self._seal()
        transaction, landed = self._run.carried, None
        place, seen, later = len(self._sealed), self._seen, list[WatermarkSeen]()
        if transaction is not None and inside:
            landed = self._framed_to(transaction)
            place = place if self._undecided is None else self._undecided
        elif transaction is not None:
            place = self._opened
            later = [mark for mark in seen if mark.position.lsn == transaction.lsn]
            seen = seen[: len(seen) - len(later)]
        if self._committed is not None:
            self._token = pgoutput.lsn_text(self._plugin.commit_end(self._committed))
            self._committed = None
        kept = self._sealed[place:]
        framed = [table for table in self._sealed[:place] if table.num_rows]
        rows = pa.concat_tables(framed) if framed else frames.NO_ROWS
        left = sum(table["payload"].nbytes for table in kept)
        piece = LogPiece(rows, ResumePoint(self._incarnation, self._token, landed), tuple(seen), self._bytes - left)
        self._sealed, self._seen, self._opened = kept, later, 0
        self._undecided = None if self._undecided is None or self._undecided < place else self._undecided - place
        self._rows, self._bytes = sum(table.num_rows for table in kept), left
        return piece

    def _framed_to(self, transaction: frames.Transaction) -> Position | None:
        """Up to where the open transaction can be skipped once what is framed before its undecided row has landed.

        That takes in rows that were not captured, and those that had landed when this stream began.
        """
        end = transaction.number * 2 if self._undecided is None else self._sealed[self._undecided]["seq"][0].as_py()
        framed = Position(self._incarnation, transaction.lsn, end - 1) if end else None
        before = self._skip_to
        if before is None or (before.incarnation, before.lsn) != (self._incarnation, transaction.lsn):
            return framed
        return before if framed is None else max(before, framed)

    def acknowledge(self, point: ResumePoint) -> None:
        with explained(self._settings):
            self._confirmer.send_feedback(flush_lsn=pgoutput.lsn_number(point.token), force=True)

    def keep_alive(self) -> None:
        self._alive_at = time.monotonic()
        with explained(self._settings):
            self._confirmer.send_feedback(force=True)

    def close(self) -> None:
        for conn in (self._connection, self._sql):
            conn.close()


def check_slot(cur: cursor, settings: PostgresSettings, resume: ResumePoint | None) -> str:
    """Where the slot can start: the resume point, or the slot's own place. Refuses by name a slot that lost it."""
    cur.execute(
        "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, active_pid FROM pg_replication_slots"
        " WHERE slot_name = %s",
        (settings.slot,),
    )
    slot = cur.fetchone()
    where = f"source {settings.name}: slot {settings.slot}"
    if slot is None:
        if resume:
            raise PositionLost(f"{where} is gone, so the log after {resume.token} is a gap", next_step=ACCEPT_GAP)
        raise PrerequisitesNotMet(f"{where} does not exist", next_step="run preflight --init")
    plugin, database, confirmed, wal_status, active_pid = slot
    if plugin != settings.plugin or database != settings.database:
        raise PrerequisitesNotMet(
            f"{where} belongs to plugin {plugin} in database {database}, not to {settings.plugin} in"
            f" {settings.database}",
            next_step="set source.slot to another name, or source.plugin and source.database to the slot's",
        )
    if wal_status == "lost":
        raise PositionLost(f"{where} is lost: the server removed log it still needed, a gap", next_step=ACCEPT_GAP)
    if active_pid is not None:
        raise SourceError(
            f"{where} is taken by server process {active_pid}",
            next_step="stop the other capture of this source, or wait until the server drops its connection",
        )
    if resume is None:
        return str(confirmed)
    if pgoutput.lsn_number(confirmed) > pgoutput.lsn_number(resume.token):
        raise PositionLost(
            f"{where} stands at {confirmed}, after {resume.token} where landing ends: the log between is a gap",
            next_step=ACCEPT_GAP,
        )
    return resume.token
