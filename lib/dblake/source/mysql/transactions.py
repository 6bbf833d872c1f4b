"""The log followed event by event: where each transaction begins and ends, and what in it concerns landing.

Between ``packets`` and ``frames``. Promises that every event is either understood, or known to be of no concern, or
refused by name with the place before it: nothing passes unseen. Holds no rows of its own.

A transaction is what lies between a GTID event (or a BEGIN without one) and an XID, a COMMIT, an XA_PREPARE, or the
end of a lone statement. Its place is that of its first event.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from zlib import crc32

import pyarrow as pa

from dblake.core.errors import ACCEPT_GAP, DblakeError, PositionLost, SourceError, Unsupported
from dblake.core.names import qualified
from dblake.landing.columns import DDL, TRUNCATE
from dblake.source.mysql import events
from dblake.source.mysql.ddl import Means, Statement, judge
from dblake.source.mysql.events import Begin, Query
from dblake.source.mysql.frames import Gathered
from dblake.source.mysql.gtids import Executed
from dblake.source.mysql.packets import Events
from dblake.source.mysql.relations import Captured, Relations
from dblake.source.mysql.resume import Place, lsn, unwrapped
from dblake.source.mysql.runs import Run, runs

_GO_ON = "capture --accept-gap starts behind it, with a new incarnation and dumps of all tables"
_ARTIFICIAL = events.ARTIFICIAL
_BODY, _CHECKSUM, _SOUND = events.BODY, events.CHECKSUM, events.SOUND
_TABLE = _BODY + 6
"""Behind the number of its table, in table maps and rows events."""
_SIZE_AND_END = struct.Struct("<II").unpack_from
_WORTH_A_STOP = events.ROWS | events.COMPRESSED_ROWS.keys() | {
    events.QUERY, events.QUERY_COMPRESSED, events.XA_PREPARE, events.FORMAT_DESCRIPTION,
}  # fmt: skip
_UNREADABLE = (ValueError, IndexError, KeyError, struct.error, zlib.error, pa.ArrowException)
"""What bytes raise that are not what they should be."""
_NO_TABLE = b"\xff\xff\xff\x00\x00\x00"
"""The table of a rows event that only ends a statement."""


class Transactions:
    """Where a stream is in the log. ``place`` is where it starts; events before it are passed over."""

    def __init__(
        self, source: str, relations: Relations, gathered: Gathered, place: Place, *, begins: int, executed: Executed
    ) -> None:
        self._source, self._relations, self._gathered, self._executed = source, relations, gathered, executed
        self._file, self._at, self._skip_until = place.file, begins, place.offset
        self._lsn_of_file = lsn(place.file, 0)
        self._start = begins
        self._whole = (place.file, place.offset, place.created)
        self.created = 0
        """When the server began the current file, 0 until it has said so."""
        self.ended = False
        """True once a transaction has ended; whoever takes the rows away sets it back."""
        self._checksums = True
        self._tables: dict[bytes, Captured] = {}
        self._payload: Iterator[bytes] | None = None
        self._begun: Begin | None = None
        self._begun_at = 0
        self._open = False
        self._handlers: dict[int, Callable[[bytes], None]] = {
            events.TABLE_MAP: self._table_map,
            events.QUERY: self._query,
            events.QUERY_COMPRESSED: self._query,
            events.XID: lambda _: self._commit(),
            events.GTID: lambda event: self._begin(event, events.gtid(event)),
            events.ANONYMOUS_GTID: lambda event: self._begin(event, events.gtid(event)),
            events.GTID_TAGGED: lambda event: self._begin(event, events.gtid_tagged(event)),
            events.MARIADB_GTID: lambda event: self._begin(event, events.mariadb_gtid(event)),
            events.XA_PREPARE: self._xa_prepare,
            events.TRANSACTION_PAYLOAD: self._unpack,
            events.PARTIAL_UPDATE_ROWS: self._partial_rows,
            **dict.fromkeys(events.ROWS, self._rows),
            **dict.fromkeys(events.COMPRESSED_ROWS, self._rows),
            **dict.fromkeys(events.IGNORED, lambda _: self._between()),
        }  # fmt: skip

    @property
    def token(self) -> str:
        """The end of the last whole transaction."""
        return Place(*self._whole, str(self._executed)).token

    def enter_file(self) -> None:
        """Makes the start, now that its file is known, a place to resume at."""
        self._whole = (*self._whole[:2], self.created)

    def feed(self, came: Events) -> Iterator[None]:
        """Takes in events; stops after each that may have left rows, and where a file begins.

        Runs of plain transactions are taken in together, short of where a piece would be full.
        """
        at = 0
        for run in runs(came, self._checksum):
            yield from self._each(came, at, run.first)
            at = run.without(self._together(run)).first
        yield from self._each(came, at, len(came))

    def _together(self, run: Run) -> int:
        """How many of a run's transactions could be taken in at once; the others are left to ``_each``."""
        max_bytes, max_rows = self._gathered.room
        between = self._begun is None and not self._open and self._at >= self._skip_until
        if not (between and max_rows > 0 and run.headers.checksum == self._checksum and run.sound):
            return 0
        try:
            framed = run.framed(self._at, max_bytes, max_rows, self._relations.of, self._gathered.told)
        except (DblakeError, *_UNREADABLE):
            # Told at its place, after what comes before it.
            return 0
        if framed is None:
            return 0
        self._gathered.together(framed, self._lsn_of_file)
        for gtid in framed.gtids:
            self._executed.add(gtid)
        self._at, self._start = framed.end, framed.last_start
        self._end()
        return framed.transactions

    @property
    def _checksum(self) -> int:
        return _CHECKSUM if self._checksums else 0

    def _each(self, came: Events, first: int, stop: int) -> Iterator[None]:
        take = self._take
        for number in range(first, stop):
            event = came[number]
            try:
                take(event)
                if event[4] in _WORTH_A_STOP:
                    yield
                if self._payload:
                    for inner in self._payload:
                        self._unusual(inner) if (known := self._handlers.get(inner[4])) is None else known(inner)
                        yield
                    self._payload = None
            except _UNREADABLE as error:
                kind = f"of type {event[4]}" if len(event) > 4 else "without a type"
                raise Unsupported(
                    f"{self._where}: an event {kind} that cannot be read ({type(error).__name__})",
                    next_step="report it with the server's version; " + _GO_ON,
                ) from error

    @property
    def _where(self) -> str:
        return f"source {self._source}: at {self._file}:{self._start} of the log"

    def _take(self, event: bytes) -> None:
        """One event as the server sent it. This and what it calls run for every event: it is kept short for speed."""
        handler = self._handlers.get(event[4])
        if handler is None and self._is_of_the_stream(event):
            return
        if self._checksums:
            if crc32(event) != _SOUND:
                self._refuse_damaged()
            event = event[:-_CHECKSUM]
        size, end = _SIZE_AND_END(event, 9)
        if end and not event[17] & _ARTIFICIAL:
            self._at = at = end if end >= self._at else unwrapped(end, self._at)
            self._start = start = at - size
            if start < self._skip_until:
                return
        if handler is None:
            self._unusual(event)
        else:
            handler(event)

    def _is_of_the_stream(self, event: bytes) -> bool:
        """Deals with events that the server makes for the stream, or changes: they have no place in the file."""
        kind, end, flags = event[4], *struct.unpack_from("<IH", event, 13)
        if kind == events.FORMAT_DESCRIPTION:
            self._describe(event, end)
        elif kind == events.ROTATE and flags & _ARTIFICIAL:
            # Sent before the server says whether it sends checksums.
            self._rotate(event[: -events.CHECKSUM] if zlib.crc32(event) == events.SOUND else event)
        else:
            return kind in (events.HEARTBEAT, events.HEARTBEAT_V2)
        return True

    def _unusual(self, event: bytes) -> None:
        kind = event[4]
        if kind == events.ROTATE:
            self._rotate(event)
        elif kind == events.INCIDENT:
            raise PositionLost(
                f"{self._where}: the server tells of an incident: changes may be missing, a gap", next_step=ACCEPT_GAP
            )
        elif not event[17] & events.CAN_BE_IGNORED:
            raise Unsupported(
                f"{self._where}: an event of type {kind} ({events.NAMES.get(kind, 'unknown')}), which may be a change",
                next_step=f"find out what writes it and stop that; then {_GO_ON}",
            )

    def _refuse_damaged(self) -> None:
        raise PositionLost(
            f"{self._where}: an event's checksum is wrong, so what follows is a gap",
            next_step="run again, in case it was the network; if it comes again, " + ACCEPT_GAP,
        )

    def _describe(self, event: bytes, end: int) -> None:
        """A file begins, or this is where the stream enters it."""
        version = int.from_bytes(event[events.BODY : events.BODY + 2], "little")
        algorithm = event[-events.CHECKSUM - 1]
        if version != 4 or event[events.BODY + 56] != events.BODY or algorithm > 1:
            raise Unsupported(
                f"{self._where}: the log's format is not that of MySQL 5.6 or MariaDB 10.0 and later",
                next_step="upgrade the server",
            )
        if self._open:
            self._break_off()
        self._checksums = algorithm == 1
        self.created = int.from_bytes(event[:4], "little")
        if end:
            self._at = unwrapped(end, self._at)
            self._between()

    def _break_off(self) -> None:
        """A file begins in the middle of a transaction: the server crashed before it was committed."""
        if not self._gathered.break_off():
            raise PositionLost(
                f"{self._where}: landing has a part of a transaction that was lost in a crash of the server, a gap",
                next_step=ACCEPT_GAP,
            )
        self._begun, self._open = None, False
        self._tables.clear()

    def _rotate(self, event: bytes) -> None:
        file, offset = events.rotate(event)
        if file != self._file:
            self._file, self._at, self._skip_until, self.created = file, offset, 0, 0
            self._lsn_of_file = lsn(file, 0)
        self._start = offset

    def _between(self) -> None:
        """After an event of no concern: between transactions, the stream can be resumed behind it."""
        if self._begun is None and not self._open and self.created and self._at >= self._skip_until:
            self._whole = (self._file, self._at, self.created)

    def _begin(self, event: bytes, begun: Begin) -> None:
        if self._open:
            raise SourceError(f"{self._where}: a transaction begins inside another", next_step="run again")
        self._begun, self._begun_at = begun, self._start
        if begun.opens:
            self._enter(event)
            if begun.prepared is not None:
                self._gathered.hold()

    def _enter(self, event: bytes, *, rows_follow: bool = True) -> None:
        """The transaction's contents begin with this event, unless they have before."""
        if self._open:
            return
        if self._begun is None:
            self._begun, self._begun_at = Begin(None), self._start
        when = self._begun.committed_at
        self._gathered.begin(self._lsn_of_file + self._begun_at, events.committed_at(event) if when is None else when)
        self._open = rows_follow

    def _commit(self) -> None:
        self._gathered.commit()
        self._end()

    def _end(self) -> None:
        if self._begun is not None and self._begun.gtid is not None:
            self._executed.add(self._begun.gtid)
        self._begun, self._open, self.ended = None, False, True
        self._tables.clear()
        self._whole = (self._file, self._at, self.created)

    def _table_map(self, event: bytes) -> None:
        if not self._open:
            self._enter(event)
        self._tables[event[_BODY:_TABLE]] = self._relations.of(event[_BODY:])

    def _rows(self, event: bytes) -> None:
        captured = self._tables.get(event[_BODY:_TABLE]) or self._mapped(event)
        if captured.schema is None and not captured.is_watermark_table:
            self._gathered.pass_over()
            return
        if event[4] in events.COMPRESSED_ROWS:
            event = events.plain_rows(event)
        if captured.schema is not None:
            self._gathered.row(captured.schema, event)
        elif event[4] in events.UPDATES:
            self._gathered.watermark(event)
        else:
            self._gathered.pass_over()

    def _partial_rows(self, event: bytes) -> None:
        captured = self._mapped(event)
        if captured.schema is not None:
            raise Unsupported(
                f"{self._where}: table {captured.schema.table}: a PARTIAL_UPDATE_ROWS event, which has parts of"
                " JSON values only",
                next_step=f"SET GLOBAL binlog_row_value_options = '' and in all sessions; then {_GO_ON}",
            )
        self._gathered.pass_over()

    def _mapped(self, event: bytes) -> Captured:
        number = event[_BODY:_TABLE]
        captured = self._tables.get(number)
        if captured is None and number == _NO_TABLE:
            return Captured(None)
        if captured is None:
            raise SourceError(f"{self._where}: rows of a table that the log did not describe", next_step="run again")
        return captured

    def _unpack(self, event: bytes) -> None:
        self._payload = events.payload(event)

    def _xa_prepare(self, event: bytes) -> None:
        name, one_phase = events.xa_prepare(event)
        if one_phase:
            self._gathered.commit_held()
        else:
            self._gathered.prepare(name, self.token)
        self._end()

    def _query(self, event: bytes) -> None:
        if event[4] == events.QUERY:
            statement = events.statement_bytes(event)
            if statement == b"BEGIN":
                self._enter(event)
                return
            if statement == b"COMMIT":
                self._commit()
                return
        query = events.query(event)
        self._judged(event, query, judge(query))

    def _judged(self, event: bytes, query: Query, statement: Statement) -> None:
        means = statement.means
        self._enter(event, rows_follow=means in (Means.BEGIN, Means.XA_START))
        if means is Means.XA_START:
            self._gathered.hold()
        elif means is Means.COMMIT:
            self._commit()
        elif means in (Means.ROLLBACK, Means.ROLLBACK_TO):
            self._refuse_lost_rows()
            if means is Means.ROLLBACK:
                self._gathered.roll_back()
                self._end()
        elif means is Means.XA_COMMIT:
            self._commit_prepared(statement.xa)
        elif means is Means.XA_ROLLBACK:
            self._gathered.roll_back(statement.xa)
            self._end()
        else:
            if means in (Means.DDL, Means.TRUNCATE):
                self._changes_tables(query, statement)
            elif means is Means.ROWS:
                self._refuse_rows(statement)
            elif means is Means.UNKNOWN:
                raise Unsupported(
                    f"{self._where}: a statement of a kind that dblake does not know, which may be a change",
                    next_step=f"report its first word; {_GO_ON}",
                )
            if means is not Means.BEGIN and not self._open:
                self._commit()

    def _commit_prepared(self, name: str) -> None:
        try:
            self._gathered.commit_prepared(name)
        except KeyError:
            raise PositionLost(
                f"{self._where}: an XA transaction is committed that was prepared before the log was followed, a gap",
                next_step=ACCEPT_GAP,
            ) from None
        self._end()

    def _changes_tables(self, query: Query, statement: Statement) -> None:
        if not statement.tables:
            self._gathered.statement(DDL, {None: {"rewrites": False, "gone": False}}, query)
            return
        names = [self._relations.named(*name) for name in statement.tables]
        rewritten, gone = (
            {self._relations.named(*name) for name in those} for those in (statement.rewrites, statement.gone)
        )
        captured: dict[str | None, dict[str, bool]] = {
            qualified(*name): {"rewrites": name in rewritten, "gone": name in gone}
            for name in names if self._relations.captures(*name)
        }
        self._gathered.statement(DDL if statement.means is Means.DDL else TRUNCATE, captured, query)

    def _refuse_rows(self, statement: Statement) -> None:
        names = [self._relations.named(*name) for name in statement.tables]
        if names and not any(self._relations.watches(*name) for name in names):
            return
        what = f"table {qualified(*names[0])}: a change" if names else "a change of tables that cannot be told"
        raise Unsupported(
            f"{self._where}: {what} was logged as a statement, not as rows",
            next_step=f"SET GLOBAL binlog_format = 'ROW' and in all sessions; then {_GO_ON}",
        )

    def _refuse_lost_rows(self) -> None:
        if self._gathered.has_rows:
            raise Unsupported(
                f"{self._where}: a transaction is rolled back after its rows were logged, some of which may stay",
                next_step=f"do not mix transactional and other engines in one transaction; {_GO_ON}",
            )
