"""The log of a MySQL or MariaDB server: its binlog read as a replica does, framed but not decoded.

Promises transactions in commit order, each row at the position where its transaction begins; a stream that resumes
repeats nothing and skips nothing. ``max_bytes`` limits the payloads of a piece and ``max_rows`` its landing rows, which
are rows events: how many row changes are in one is known only after decoding. Memory beyond a piece is used by rows of
prepared XA transactions alone, within a limit of their own (``prepared``).

The server keeps its binlog for a configured time, regardless of its readers: there is nothing to acknowledge, and no
keep-alive to send. While it has no events it sends heartbeats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pymysql
from pymysql.cursors import Cursor

from dblake.base.core.errors import ACCEPT_GAP, LogWentBack, PositionLost, PrerequisitesNotMet, SourceError, Unsupported
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import LogPiece
from dblake.ingest.source.mysql.connection import connect, open_cursor, version_of
from dblake.ingest.source.mysql.driver_errors import log_error, translate_errors
from dblake.ingest.source.mysql.file_gtids import with_exact_gtids
from dblake.ingest.source.mysql.gtids import executed_gtids
from dblake.ingest.source.mysql.log_position import FIRST_OFFSET, LogPosition
from dblake.ingest.source.mysql.log_retention import list_log_files
from dblake.ingest.source.mysql.packets import HEARTBEAT_SECONDS, DumpEnded, Packets, start_dump
from dblake.ingest.source.mysql.pieces import PieceBuilder
from dblake.ingest.source.mysql.relations import Relations
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.transactions import Transactions

_SILENCE_SECONDS = 15 * HEARTBEAT_SECONDS
"""Without a packet or heartbeat for this long, the connection counts as gone."""
_MAX_DUMP_OFFSET = 0xFFFF_FFFF
"""The last offset at which a dump can begin; behind it the stream reads from the file's start and skips."""
_SHOW_BINARY_LOG = (8, 2, 0)
"""The first version of MySQL with SHOW BINARY LOG STATUS; 8.4 has no SHOW MASTER STATUS."""


class MysqlLogStream:
    """A started dump of the binlog. See LogStream for the methods."""

    def __init__(self, settings: MysqlSettings, resume: ResumePoint | None, incarnation: int) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._conn: pymysql.Connection | None = None
        self._rejected: SourceError | None = None
        self._feed: Iterator[None] = iter(())
        position, folds_names = _start_position(settings, resume)
        self._relations = Relations(settings, folds_names=folds_names)
        self._pieces = PieceBuilder(incarnation, resume.landed if resume else None)
        begins = position.offset if position.offset <= _MAX_DUMP_OFFSET else FIRST_OFFSET
        self._transactions = Transactions(
            settings.name, self._relations, self._pieces, position, begins=begins,
            executed=executed_gtids(settings.flavour, position.gtids),
        )
        try:
            self._conn = self._start_dump(position.file, begins)
            self._packets = Packets(self._conn)
            self._received_at = time.monotonic()
            token = self._await_file(position, resume)
        except BaseException:
            self.close()
            raise
        self.start = ResumePoint(incarnation, token, resume.landed if resume else None)

    def _start_dump(self, file: str, offset: int) -> pymysql.Connection:
        settings = self._settings
        conn = connect(settings, purpose="log")
        try:
            with translate_errors(settings):
                start_dump(conn, settings, file=file, offset=offset)
        except BaseException:
            conn.close()
            raise
        return conn

    def _await_file(self, position: LogPosition, resume: ResumePoint | None) -> str:
        """Read the description of the file that the stream begins in, and return the token of the start.

        Raises LogWentBack if it is another file of the same name, SourceError if the server sends nothing in time.
        """
        deadline = time.monotonic() + _SILENCE_SECONDS
        while not self._transactions.file_created:
            if time.monotonic() > deadline:
                raise SourceError(
                    f"source {self._settings.name}: the server has not sent the start of its log within"
                    f" {_SILENCE_SECONDS:.0f} s",
                    next_step="check the server's load and error log; then run again",
                )
            if next(self._feed, self) is self:
                self._receive(1.0)
        if resume is None:
            self._transactions.confirm_start()
            return self._transactions.token
        if self._transactions.file_created != position.created:
            raise LogWentBack(
                f"source {self._settings.name}: {position.file} is another file of that name than landing ends in: the"
                " log was reset, a gap",
                next_step=ACCEPT_GAP,
            )
        return resume.token

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        if self._rejected:
            raise self._rejected
        until = time.monotonic() + seconds
        self._pieces.limit(max_bytes, max_rows)
        try:
            while True:
                remaining = max(0.0, until - time.monotonic())
                for _ in self._feed:
                    if self._pieces.is_full:
                        return self._cut(inside=True)
                self._receive(remaining)
                if remaining == 0.0:
                    # All that was received before is handled; what has arrived just now is for the next call.
                    return self._cut(inside=False) if self._transactions.has_ended else None
        except (PositionLost, Unsupported, PrerequisitesNotMet) as error:
            self._rejected = error
            # Whole transactions before the rejected event are returned first.
            if not self._transactions.has_ended:
                raise
            return self._cut(inside=False)

    def _receive(self, seconds: float) -> None:
        """Receive what the server has sent, or sends within the time. Raises SourceError if the connection is gone."""
        try:
            with translate_errors(self._settings):
                received = self._packets.receive(seconds)
        except DumpEnded as ended:
            raise log_error(self._settings, ended, self._transactions.token) from ended
        now = time.monotonic()
        if received is not None:
            self._received_at = now
            self._feed = self._transactions.feed(received)
        elif now - self._received_at > _SILENCE_SECONDS:
            raise SourceError(
                f"source {self._settings.name}: no packet or heartbeat for {_SILENCE_SECONDS:.0f} s",
                next_step="check that the server is up, then run again",
            )

    def _cut(self, *, inside: bool) -> LogPiece:
        cut = self._pieces.cut(inside=inside)
        token = self._pieces.oldest_prepared or self._transactions.token
        self._transactions.clear_ended()
        return LogPiece(
            cut.rows, ResumePoint(self._incarnation, token, cut.landed), cut.watermarks, cut.bytes,
            self._relations.take_rejected(),
        )

    def acknowledge(self, point: ResumePoint) -> None:
        """Do nothing: the server expires log by age alone."""

    def keep_alive(self) -> None:
        """Do nothing: the server expects no messages from a replica."""

    def close(self) -> None:
        if self._conn is not None:
            self._conn._force_close()
        self._relations.close()


def _start_position(settings: MysqlSettings, resume: ResumePoint | None) -> tuple[LogPosition, bool]:
    """Return where the log starts, and whether the server stores names in lower case. Raises PositionLost."""
    with open_cursor(settings, purpose="log start") as cur:
        position = LogPosition.parse(resume.token) if resume else log_end(cur, settings)
        _require_file(cur, settings, position)
        position = with_exact_gtids(cur, settings, position)
        cur.execute("SELECT @@lower_case_table_names")
        return position, bool(cur.fetchone()[0])


def log_end(cur: Cursor, settings: MysqlSettings) -> LogPosition:
    """Return where the log ends now, without the file's creation time and GTIDs.

    Raises PrerequisitesNotMet if the server writes no log.
    """
    version = version_of(cur.connection)
    is_mysql = version.flavour == "mysql"
    cur.execute("SHOW BINARY LOG STATUS" if is_mysql and version.number >= _SHOW_BINARY_LOG else "SHOW MASTER STATUS")
    row = cur.fetchone()
    if row is None:
        raise PrerequisitesNotMet(
            f"source {settings.name}: the server keeps no binlog", next_step="set log_bin and restart it"
        )
    file, offset = str(row[0]), int(row[1])
    return LogPosition(file, offset)


def _require_file(cur: Cursor, settings: MysqlSettings, position: LogPosition) -> None:
    """Raise PositionLost for a position that the server's log no longer has."""
    sizes = list_log_files(cur)
    where = f"source {settings.name}: {position.file}"
    if position.file not in sizes:
        raise PositionLost(f"{where} is gone, so the log after {position} is a gap", next_step=ACCEPT_GAP)
    if sizes[position.file] < position.offset:
        raise LogWentBack(
            f"{where} ends before {position}, where landing ends: the log was reset or cut short, a gap",
            next_step=ACCEPT_GAP,
        )
