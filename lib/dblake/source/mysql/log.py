"""The log of a MySQL or MariaDB server: its binlog read as a replica does, framed but not decoded.

Promises: transactions in commit order, each row at the place where its transaction begins; a stream opened at a resume
point repeats nothing and skips nothing. ``max_bytes`` bounds what a piece holds and ``max_rows`` its landing rows, that
is rows events: how many row changes are in one is known only to who decodes it. Memory beyond a piece goes to rows of
prepared XA transactions alone, within a limit of their own.

The server keeps its binlog for as long as it is set to, whoever reads it: there is nothing to acknowledge, and no sign
of life that it waits for. It speaks by itself while it has nothing to send.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pymysql
from pymysql.cursors import Cursor

from dblake.core.errors import ACCEPT_GAP, PositionLost, PrerequisitesNotMet, SourceError, Unsupported
from dblake.core.position import ResumePoint
from dblake.core.source import LogPiece, LogRetention
from dblake.source.mysql.catalog_facts import retention_seconds
from dblake.source.mysql.connection import asking, connect, explained, version_of
from dblake.source.mysql.frames import Gathered
from dblake.source.mysql.gtids import executed
from dblake.source.mysql.packets import HEARTBEAT_SECONDS, DumpEnded, Packets, start_dump
from dblake.source.mysql.relations import Relations
from dblake.source.mysql.resume import Place
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.transactions import Transactions

_SILENCE_SECONDS = 15 * HEARTBEAT_SECONDS
"""After so long without a sign of life from the server, the connection counts as gone."""
_MOST_OFFSET = 0xFFFF_FFFF
"""The last offset that a dump can be asked to begin at."""
_START_OF_FILE = 4
_UNREADABLE = 1236
#: What a server says under that one number; the words are those of both flavours, in parts that they share.
_GONE = ("first log file name", "Could not find next log", "Could not open log file", "impossible position",
         "file size", "truncated in the middle", "crc check", "bogus data")


class MysqlLogStream:
    """A started dump of the binlog. See LogStream for the methods."""

    def __init__(self, settings: MysqlSettings, resume: ResumePoint | None, incarnation: int) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._conn: pymysql.Connection | None = None
        self._refused: SourceError | None = None
        self._feed: Iterator[None] = iter(())
        place, fold = _judged_start(settings, resume)
        self._relations = Relations(settings, fold=fold)
        self._gathered = Gathered(incarnation, resume.landed if resume else None)
        begins = place.offset if place.offset <= _MOST_OFFSET else _START_OF_FILE
        self._transactions = Transactions(
            settings.name, self._relations, self._gathered, place, begins=begins,
            executed=executed(settings.flavour, place.gtids),
        )
        try:
            self._conn = self._dump(place.file, begins)
            self._packets = Packets(self._conn)
            self._heard = time.monotonic()
            token = self._await_file(place, resume)
        except BaseException:
            self.close()
            raise
        self.start = ResumePoint(incarnation, token, resume.landed if resume else None)

    def _dump(self, file: str, offset: int) -> pymysql.Connection:
        settings = self._settings
        conn = connect(settings, purpose="log")
        try:
            with explained(settings):
                start_dump(
                    conn, flavour=settings.flavour, server_id=settings.server_id, label=f"dblake {settings.name}",
                    file=file, offset=offset,
                )
        except BaseException:
            conn.close()
            raise
        return conn

    def _await_file(self, place: Place, resume: ResumePoint | None) -> str:
        """Reads up to the description of the file the stream begins in; refuses one that is not the file meant."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        while not self._transactions.created:
            if time.monotonic() > deadline:
                raise SourceError(
                    f"source {self._settings.name}: the server has not sent the start of its log within"
                    f" {_SILENCE_SECONDS:.0f} s",
                    next_step="see the server's load and error log; then run again",
                )
            if next(self._feed, self) is self:
                self._receive(1.0)
        if resume is None:
            self._transactions.enter_file()
            return self._transactions.token
        if self._transactions.created != place.created:
            raise PositionLost(
                f"source {self._settings.name}: {place.file} is another file of that name than landing ends in: the log"
                " was reset, a gap",
                next_step=ACCEPT_GAP,
            )
        return resume.token

    def read(self, *, max_bytes: int, max_rows: int, seconds: float) -> LogPiece | None:
        if self._refused:
            raise self._refused
        until = time.monotonic() + seconds
        self._gathered.limit(max_bytes, max_rows)
        try:
            while True:
                left = max(0.0, until - time.monotonic())
                for _ in self._feed:
                    if self._gathered.full:
                        return self._cut(inside=True)
                self._receive(left)
                if left == 0.0:
                    # Nothing is left of what had come before; what has come now is for the next call.
                    return self._cut(inside=False) if self._transactions.ended else None
        except (PositionLost, Unsupported, PrerequisitesNotMet) as error:
            self._refused = error
            # What was whole before the place of refusal is as good as ever.
            if not self._transactions.ended:
                raise
            return self._cut(inside=False)

    def _receive(self, seconds: float) -> None:
        """Takes what the server has sent, or sends within the time."""
        try:
            with explained(self._settings):
                came = self._packets.receive(seconds)
        except DumpEnded as ended:
            raise self._explained(ended) from ended
        now = time.monotonic()
        if came is not None:
            self._heard = now
            self._feed = self._transactions.feed(came)
        elif now - self._heard > _SILENCE_SECONDS:
            raise SourceError(
                f"source {self._settings.name}: the server has fallen silent", next_step="see that it is up; run again"
            )

    def _explained(self, ended: DumpEnded) -> SourceError:
        where = f"source {self._settings.name}"
        if ended.number == 0:
            return SourceError(f"{where}: the server ended the log's stream", next_step="run again")
        # Under another number in each flavour.
        if "the same server_uuid/server_id" in ended.text:
            return SourceError(
                f"{where}: another replica has connected with server id {self._settings.server_id}",
                next_step="stop the other capture of this source, or set source.server_id to a number of its own",
            )
        if ended.number != _UNREADABLE:
            try:
                with explained(self._settings):
                    raise pymysql.OperationalError(ended.number, ended.text)
            except SourceError as error:
                return error
        if any(words in ended.text for words in _GONE):
            token = self._transactions.token
            return PositionLost(
                f"{where}: the server cannot read its log after {token}, a gap", next_step=ACCEPT_GAP
            )
        if "max_allowed_packet" in ended.text:
            return PrerequisitesNotMet(
                f"{where}: an event is larger than the server's max_allowed_packet lets it send",
                next_step="SET GLOBAL max_allowed_packet = 1073741824",
            )
        return SourceError(
            f"{where}: the server cannot send its log (error {ended.number})", next_step="see the server's error log"
        )

    def _cut(self, *, inside: bool) -> LogPiece:
        cut = self._gathered.cut(inside=inside)
        token = self._gathered.oldest_prepared or self._transactions.token
        self._transactions.ended = False
        return LogPiece(cut.rows, ResumePoint(self._incarnation, token, cut.landed), cut.seen, cut.bytes)

    def acknowledge(self, point: ResumePoint) -> None:
        """Nothing to tell: see the module."""

    def keep_alive(self) -> None:
        """Nothing to tell: see the module."""

    def close(self) -> None:
        if self._conn is not None:
            self._conn._force_close()
        self._relations.close()


def _judged_start(settings: MysqlSettings, resume: ResumePoint | None) -> tuple[Place, bool]:
    """Where the log can start, refused by name if it cannot, and whether names are stored in lower case."""
    with asking(settings, purpose="log start") as cur:
        place = Place.parse(resume.token) if resume else log_end(cur, settings)
        _require_file(cur, settings, place)
        cur.execute("SELECT @@lower_case_table_names")
        return place, bool(cur.fetchone()[0])


def log_end(cur: Cursor, settings: MysqlSettings) -> Place:
    """Where the log ends now; ``created`` is not known yet. Raises PrerequisitesNotMet if there is no log."""
    version = version_of(cur.connection)
    mysql = version.flavour == "mysql"
    cur.execute("SHOW BINARY LOG STATUS" if mysql and version.number >= (8, 2, 0) else "SHOW MASTER STATUS")
    row = cur.fetchone()
    if row is None:
        raise PrerequisitesNotMet(
            f"source {settings.name}: the server keeps no binlog", next_step="set log_bin and restart it"
        )
    file, offset = str(row[0]), int(row[1])
    if mysql:
        return Place(file, offset, gtids="".join(str(row[4]).split()))
    cur.execute("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
    (gtids,) = cur.fetchone()
    return Place(file, offset, gtids=gtids or "")


def log_retention(cur: Cursor, place: Place | None) -> LogRetention:
    """How the log stands for a capture that resumes there: a server keeps it for a time, whoever has read it."""
    sizes = _files(cur)
    names = list(sizes)
    cur.execute("SHOW GLOBAL VARIABLES LIKE '%expire_logs%'")
    said = {str(name): str(value) for name, value in cur.fetchall()}
    seconds = retention_seconds(said)
    if place is None:
        return LogRetention(kept=sum(sizes.values()), seconds=seconds)
    if place.file not in sizes:
        return LogRetention(kept=sum(sizes.values()), seconds=seconds, lost=True)
    later = names[names.index(place.file):]
    return LogRetention(
        behind=max(sum(sizes[name] for name in later) - place.offset, 0), kept=sum(sizes.values()), seconds=seconds
    )


def _files(cur: Cursor) -> dict[str, int]:
    """The binlog's files, oldest first, and their sizes."""
    cur.execute("SHOW BINARY LOGS")
    return {str(name): int(size) for name, size, *_ in cur.fetchall()}


def _require_file(cur: Cursor, settings: MysqlSettings, place: Place) -> None:
    """Refuses by name a place that the server does not have."""
    sizes = _files(cur)
    where = f"source {settings.name}: {place.file}"
    if place.file not in sizes:
        raise PositionLost(f"{where} is gone, so the log after {place} is a gap", next_step=ACCEPT_GAP)
    if sizes[place.file] < place.offset:
        raise PositionLost(
            f"{where} ends before {place}, where landing ends: the log was reset or cut short, a gap",
            next_step=ACCEPT_GAP,
        )
