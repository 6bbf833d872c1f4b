"""The log of a PostgreSQL database: a replication slot read through pgoutput, framed but not decoded.

Promises: transactions in commit order, each row at the position its transaction's Begin message gives; a stream opened
at a resume point repeats nothing and skips nothing. Deciding what has landed, and so what may be acknowledged, is
capture's business.
"""

from __future__ import annotations

import select
import time

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection, cursor
from psycopg2.extras import REPLICATION_LOGICAL

from dblake.core.errors import PositionLost, PrerequisitesNotMet, SourceError
from dblake.core.position import Position, ResumePoint
from dblake.core.source import LogPiece, WatermarkSeen
from dblake.landing.columns import FRAMES, SCHEMA
from dblake.source.postgres import frames, pgoutput
from dblake.source.postgres.connection import connect_replication, explained
from dblake.source.postgres.relations import Relations
from dblake.source.postgres.settings import PostgresSettings

_LOOK_EVERY = 256
"""Messages read between two looks at the limits and the clock."""


class PgLogStream:
    """A started replication stream. Opens the slot on construction; see LogStream for the methods."""

    def __init__(
        self, settings: PostgresSettings, conn: connection, resume: ResumePoint | None, incarnation: int
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._sql = conn
        self._skip_to = resume.landed if resume else None
        with explained(settings):
            cur = conn.cursor()
            start = check_slot(cur, settings, resume)
            self._relations = Relations(cur, settings.wanted, settings.watermark_schema)
            cur.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            self._txid_near = int(cur.fetchone()[0])
        self._token = start
        self.start = ResumePoint(incarnation, start, self._skip_to)
        self._connection = connect_replication(settings)
        self._start(start)
        self._run = frames.Run()
        self._open: frames.Transaction | None = None
        self._sealed: list[pa.Table] = []
        self._held: pa.Table | None = None
        self._seen: list[WatermarkSeen] = []
        self._rows = self._bytes = 0
        self._cut_at = self._token

    def _start(self, start: str) -> None:
        # psycopg2 confirms more than it was told to: once all that a cursor was told to confirm covers the last
        # message's LSN, a keepalive makes it confirm the server's position, and rows of a later transaction may well
        # have lower LSNs than an earlier, not yet landed one's commit. So the cursor that reads is told nothing, and
        # a second one, which never reads, confirms.
        self._reader = self._connection.cursor()
        self._confirmer = self._connection.cursor()
        with explained(self._settings):
            try:
                self._reader.start_replication(
                    slot_name=self._settings.slot,
                    slot_type=REPLICATION_LOGICAL,
                    start_lsn=start,
                    options={"proto_version": "1", "publication_names": _publication(self._settings.publication)},
                    decode=False,
                    status_interval=3600,
                )
            except psycopg2.errors.ObjectInUse as error:
                raise SourceError(
                    f"source {self._settings.name}: slot {self._settings.slot} is taken by another process",
                    next_step="stop the other capture of this source, or wait until the server drops its connection",
                ) from error

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        until = time.monotonic() + seconds
        with explained(self._settings):
            while True:
                dry = self._read_some()
                if self._bytes >= max_bytes or self._rows + len(self._run.messages) >= max_rows:
                    return self._cut(inside=True)
                left = until - time.monotonic()
                if left <= 0:
                    return self._cut(inside=False) if self._token != self._cut_at else None
                if dry:
                    select.select([self._connection], [], [], left)

    def _read_some(self) -> bool:
        """Reads until the stream is dry or it is time to look at the limits; True if it is dry."""
        read = self._reader.read_message
        append = self._run.messages.append
        size = 0
        try:
            for _ in range(_LOOK_EVERY):
                message = read()
                if message is None:
                    return True
                payload = message.payload
                kind = payload[0]
                if kind == pgoutput.INSERT or kind == pgoutput.UPDATE or kind == pgoutput.DELETE:
                    append(payload)
                    size += len(payload)
                elif kind == pgoutput.BEGIN:
                    self._begin(payload)
                elif kind == pgoutput.COMMIT:
                    self._commit(payload)
                elif kind == pgoutput.RELATION:
                    self._relation(payload)
                    append = self._run.messages.append
                elif kind == pgoutput.TRUNCATE:
                    self._run.messages.extend(pgoutput.truncates(payload))
            return False
        finally:
            self._bytes += size

    def _begin(self, payload: bytes) -> None:
        begin = pgoutput.begin(payload)
        self._txid_near = txid = pgoutput.widen(begin.xid, self._txid_near)
        self._open = frames.Transaction(begin.lsn, txid, begin.committed_at, start=len(self._run.messages))
        self._run.transactions.append(self._open)

    def _commit(self, payload: bytes) -> None:
        if self._open is None:
            raise SourceError("the log sent a COMMIT without a BEGIN", next_step="run again")
        self._open.complete = True
        self._open = None
        self._token = pgoutput.lsn_text(pgoutput.commit_end(payload))

    def _relation(self, payload: bytes) -> None:
        relation = pgoutput.relation(payload)
        if self._open is None:
            raise SourceError("the log described a table outside a transaction", next_step="run again")
        if self._relations.knows(payload, relation):
            return
        # Rows before this message mean the relation as it was: frame them first.
        number = self._open.number + len(self._run.messages) - self._open.start
        self._seal()
        self._open = self._go_on(self._open, number)
        learned = self._relations.learn(payload, relation).schema
        if learned:
            position = Position(self._incarnation, self._open.lsn, number * 2)
            self._sealed.append(frames.schema_row(learned, position, self._open))

    def _go_on(self, transaction: frames.Transaction, number: int) -> frames.Transaction:
        """A new run that begins inside ``transaction``, of which ``number`` messages have been framed."""
        rest = frames.Transaction(transaction.lsn, transaction.txid, transaction.committed_at, 0, number)
        self._run = frames.Run(transactions=[rest])
        return rest

    def _seal(self) -> None:
        """Frames the run. A row kept back from an earlier cut goes before it, as soon as it is known what follows."""
        rows, seen = frames.frame(self._run, self._relations, self._incarnation, self._skip_to)
        self._seen.extend(seen)
        if self._held is not None:
            transaction = self._run.transactions[0]
            followed = rows.num_rows > 0 and rows["lsn"][0].as_py() == transaction.lsn
            if followed or transaction.complete:
                self._sealed.append(self._held if followed else frames.as_last(self._held))
                self._held = None
        if rows.num_rows:
            self._sealed.append(rows)
            self._rows += rows.num_rows

    def _cut(self, *, inside: bool) -> LogPiece:
        """Takes out what has come: all whole transactions, and of one still open all but its last captured row.

        That row is kept back because only COMMIT tells whether it is the transaction's last. Without ``inside`` an
        open transaction stays whole, unless some of it has been framed already.
        """
        size, landed = self._bytes, None
        self._bytes = self._rows = 0
        if self._open is None:
            self._seal()
            self._run = frames.Run()
        elif inside or self._open.number:
            landed = self._cut_inside(self._open)
        else:
            later = self._run.messages[self._open.start :]
            del self._run.messages[self._open.start :], self._run.transactions[-1]
            self._seal()
            self._open = self._go_on(self._open, 0)
            self._run.messages = later
            self._bytes = sum(map(len, later))
        self._cut_at = self._token
        rows = pa.concat_tables(self._sealed) if self._sealed else FRAMES.empty_table()
        piece = LogPiece(rows, ResumePoint(self._incarnation, self._token, landed), tuple(self._seen), size)
        self._sealed, self._seen, self._rows = [], [], 0
        return piece

    def _cut_inside(self, transaction: frames.Transaction) -> Position:
        number = transaction.number + len(self._run.messages) - transaction.start
        self._seal()
        self._open = self._go_on(transaction, number)
        end = number * 2
        if self._held is None and self._sealed:
            last = self._sealed[-1].slice(self._sealed[-1].num_rows - 1)
            if last["lsn"][0].as_py() == transaction.lsn and last["kind"][0].as_py() != SCHEMA:
                self._held = last
                self._sealed[-1] = self._sealed[-1].slice(0, self._sealed[-1].num_rows - 1)
        if self._held is not None:
            end = self._held["seq"][0].as_py()
        # All before ``end`` is framed, whether it was captured or not; what lies at it comes again after a restart.
        return Position(self._incarnation, transaction.lsn, max(end - 1, 0))

    def acknowledge(self, point: ResumePoint) -> None:
        with explained(self._settings):
            self._confirmer.send_feedback(flush_lsn=pgoutput.lsn_number(point.token), force=True)

    def keep_alive(self) -> None:
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
    accept = "capture --accept-gap starts a new incarnation and dumps all tables again"
    if slot is None:
        if resume:
            raise PositionLost(f"{where} is gone, so the log after {resume.token} is a gap", next_step=accept)
        raise PrerequisitesNotMet(f"{where} does not exist", next_step="run preflight --init")
    plugin, database, confirmed, wal_status, active_pid = slot
    if plugin != "pgoutput" or database != settings.database:
        raise PrerequisitesNotMet(
            f"{where} belongs to plugin {plugin} in database {database}", next_step="set source.slot to another name"
        )
    if wal_status == "lost":
        raise PositionLost(f"{where} is lost: the server removed log it still needed, a gap", next_step=accept)
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
            next_step=accept,
        )
    return resume.token


def _publication(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
