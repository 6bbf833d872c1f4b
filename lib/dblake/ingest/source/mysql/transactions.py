"""The log event by event: route each event to its handler; no event passes without being understood.

Between ``packets`` and ``transaction_state``. Guarantee: every event is handled, has no effect by its type, or is
rejected by name with its position. Plain transactions are handled in whole runs (``runs``), with the same result. This
module holds no rows and no transaction: ``pieces`` holds the rows, ``transaction_state`` the open transaction,
``log_cursor`` the position.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from zlib import crc32

import pyarrow as pa
from pymysqlreplication.constants import BINLOG

from dblake.base.core.errors import ACCEPT_GAP, DblakeError, PositionLost, SourceError, Unsupported
from dblake.ingest.source.mysql import control_events, events, gtid_events, packed_events
from dblake.ingest.source.mysql.gtids import ExecutedGtids
from dblake.ingest.source.mysql.log_cursor import LogCursor
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.logged_statements import SKIP_STEP, LoggedStatements
from dblake.ingest.source.mysql.packets import PacketEvents
from dblake.ingest.source.mysql.pieces import PieceBuilder
from dblake.ingest.source.mysql.relations import Captured, Relations
from dblake.ingest.source.mysql.runs import Run, find_runs
from dblake.ingest.source.mysql.transaction_state import TransactionState
from dblake.payloads.formats.binlog import TABLE_ID_BYTES

_ARTIFICIAL = events.ARTIFICIAL_FLAG
_BODY, _CHECKSUM_BYTES, _CRC32_RESIDUE = events.BODY, events.CHECKSUM_BYTES, events.CRC32_RESIDUE
_TABLE_ID_END = _BODY + TABLE_ID_BYTES
"""Behind the number of the table, in TABLE_MAP and rows events."""
_SIZE_AND_END = struct.Struct("<II").unpack_from
_MAY_LEAVE_ROWS = events.ROWS | packed_events.COMPRESSED_ROWS.keys() | {
    BINLOG.QUERY_EVENT, events.QUERY_COMPRESSED, BINLOG.XA_PREPARE_EVENT, BINLOG.FORMAT_DESCRIPTION_EVENT,
}  # fmt: skip
"""Types of events after which the consumer may want to cut a piece."""
_MALFORMED = (ValueError, IndexError, KeyError, struct.error, zlib.error, pa.ArrowException)
"""Errors that reading malformed bytes raises."""
_NO_TABLE = b"\xff\xff\xff\x00\x00\x00"
"""The table number of a rows event that only ends a statement."""


class Transactions:
    """A stream's events, from offset ``begins`` on; those before ``resume`` are skipped."""

    def __init__(
        self, source: str, relations: Relations, pieces: PieceBuilder, resume: LogPosition, *, begins: int,
        executed: ExecutedGtids,
    ) -> None:
        self._relations, self._pieces = relations, pieces
        self._cursor = LogCursor(source, resume, begins=begins)
        self._state = TransactionState(self._cursor, pieces, executed)
        self._statements = LoggedStatements(relations, self._state)
        self._has_checksums = True
        self._payload: Iterator[bytes] | None = None
        state = self._state
        self._handlers: dict[int, Callable[[bytes], None]] = {
            BINLOG.TABLE_MAP_EVENT: self._on_table_map,
            BINLOG.QUERY_EVENT: self._on_query,
            events.QUERY_COMPRESSED: self._on_query,
            BINLOG.XID_EVENT: lambda _: state.commit(),
            BINLOG.GTID_LOG_EVENT: lambda event: state.begin(event, gtid_events.read_gtid(event)),
            BINLOG.ANONYMOUS_GTID_LOG_EVENT: lambda event: state.begin(event, gtid_events.read_gtid(event)),
            events.GTID_TAGGED: lambda event: state.begin(event, gtid_events.read_tagged_gtid(event)),
            BINLOG.MARIADB_GTID_EVENT: lambda event: state.begin(event, gtid_events.read_mariadb_gtid(event)),
            BINLOG.XA_PREPARE_EVENT: self._on_xa_prepare,
            events.TRANSACTION_PAYLOAD: self._on_payload,
            BINLOG.PARTIAL_UPDATE_ROWS_EVENT: self._on_partial_rows,
            **dict.fromkeys(events.ROWS, self._on_rows),
            **dict.fromkeys(packed_events.COMPRESSED_ROWS, self._on_rows),
            **dict.fromkeys(events.IGNORED, lambda _: state.pass_event()),
        }  # fmt: skip

    @property
    def token(self) -> str:
        """The resume token of the end of the last whole transaction."""
        return self._state.token

    @property
    def file_created(self) -> int:
        """When the server began the current file, in seconds since 1970; 0 until the stream has described it."""
        return self._cursor.created

    @property
    def has_ended(self) -> bool:
        """True once a transaction has ended since ``clear_ended``."""
        return self._state.has_ended

    def clear_ended(self) -> None:
        """Note that the rows of all transactions that have ended were taken out."""
        self._state.has_ended = False

    def confirm_start(self) -> None:
        """Make the start, whose file is described by now, a position to resume at."""
        self._cursor.confirm_start()

    def feed(self, received: PacketEvents) -> Iterator[None]:
        """Handle events; yields after each that may have left rows, and where a file begins.

        Runs of plain transactions are handled at once, as far as they fit into the piece. Raises Unsupported,
        PositionLost or SourceError, with the position, for an event that cannot be captured.
        """
        line = 0
        for run in find_runs(received, self._checksum_bytes):
            yield from self._handle_each(received, line, run.first)
            line = run.without(self._handle_run(run)).first
        yield from self._handle_each(received, line, len(received))

    def _handle_run(self, run: Run) -> int:
        """Return how many of a run's transactions were handled at once; the others are left to ``_handle_each``."""
        max_bytes, max_rows = self._pieces.room
        can_start = self._state.is_between and not self._cursor.is_skipping and max_rows > 0
        if not (can_start and run.headers.checksum_bytes == self._checksum_bytes and run.has_valid_checksums):
            return 0
        try:
            framed = run.frame(
                self._cursor.end, max_bytes, max_rows, self._relations.table_of, self._pieces.is_schema_landed
            )
        except (DblakeError, *_MALFORMED):
            # Handled one by one, the error is raised at its position, behind what precedes it.
            return 0
        if framed is None:
            return 0
        self._state.end_run(framed)
        return framed.transactions

    @property
    def _checksum_bytes(self) -> int:
        return _CHECKSUM_BYTES if self._has_checksums else 0

    def _handle_each(self, received: PacketEvents, first: int, stop: int) -> Iterator[None]:
        handle = self._handle
        for number in range(first, stop):
            event = received[number]
            try:
                handle(event)
                if event[4] in _MAY_LEAVE_ROWS:
                    yield
                if self._payload:
                    for inner in self._payload:
                        self._handlers.get(inner[4], self._on_unknown)(inner)
                        yield
                    self._payload = None
            except _MALFORMED as error:
                kind = f"of type {event[4]}" if len(event) > 4 else "without a type"
                raise Unsupported(
                    f"{self._where}: an event {kind} that cannot be read",
                    next_step="report it with the server's version; " + SKIP_STEP,
                ) from error

    @property
    def _where(self) -> str:
        return self._cursor.description

    def _handle(self, event: bytes) -> None:
        """Handle one event as the server sent it. Runs for every event outside runs, so it is kept short for speed."""
        handler = self._handlers.get(event[4])
        if handler is None and self._handle_stream_event(event):
            return
        if self._has_checksums:
            if crc32(event) != _CRC32_RESIDUE:
                self._reject_damaged()
            event = event[:-_CHECKSUM_BYTES]
        size, end = _SIZE_AND_END(event, 9)
        if end and not event[17] & _ARTIFICIAL and not self._cursor.advance(size, end):
            return
        (handler or self._on_unknown)(event)

    def _handle_stream_event(self, event: bytes) -> bool:
        """Handle an event that the server makes or changes for the stream, so that its end offset is not one."""
        kind, end, flags = event[4], *struct.unpack_from("<IH", event, 13)
        if kind == BINLOG.FORMAT_DESCRIPTION_EVENT:
            self._on_format_description(event, end)
        elif kind == BINLOG.ROTATE_EVENT and flags & _ARTIFICIAL:
            # Sent before the server announces whether it sends checksums.
            self._on_rotate(event[:-_CHECKSUM_BYTES] if crc32(event) == _CRC32_RESIDUE else event)
        else:
            return kind in events.HEARTBEATS
        return True

    def _on_unknown(self, event: bytes) -> None:
        kind = event[4]
        if kind == BINLOG.ROTATE_EVENT:
            self._on_rotate(event)
        elif kind == BINLOG.INCIDENT_EVENT:
            raise PositionLost(
                f"{self._where}: the binlog contains an INCIDENT event: changes may be missing, a gap",
                next_step=ACCEPT_GAP,
            )
        elif not event[17] & events.IGNORABLE_FLAG:
            raise Unsupported(
                f"{self._where}: an event of type {kind} ({events.NAMES.get(kind, 'unknown')}), which may be a change",
                next_step=f"identify the component that writes it and disable it; then {SKIP_STEP}",
            )

    def _reject_damaged(self) -> None:
        raise PositionLost(
            f"{self._where}: an event's checksum is wrong, so what follows is a gap",
            next_step="run again, in case it was the network; if it fails again, " + ACCEPT_GAP,
        )

    def _on_format_description(self, event: bytes, end: int) -> None:
        """Apply the description at the beginning of a file, or where the stream enters it."""
        description = control_events.read_format_description(event)
        if not description.is_supported:
            raise Unsupported(
                f"{self._where}: the log's format is not that of MySQL 5.6 or MariaDB 10.0 and later",
                next_step="upgrade the server",
            )
        self._state.discard_open()
        self._has_checksums = description.has_checksums
        self._cursor.describe_file(description.created, end)
        if end:
            self._state.pass_event()

    def _on_rotate(self, event: bytes) -> None:
        self._cursor.rotate(*control_events.read_rotate(event))

    def _on_table_map(self, event: bytes) -> None:
        if not self._state.is_open:
            self._state.enter(event)
        self._state.tables[event[_BODY:_TABLE_ID_END]] = self._relations.table_of(event[_BODY:])

    def _on_rows(self, event: bytes) -> None:
        captured = self._state.tables.get(event[_BODY:_TABLE_ID_END]) or self._mapped_table(event)
        if captured.schema is None and not captured.is_watermark_table:
            self._pieces.skip_row()
            return
        if event[4] in packed_events.COMPRESSED_ROWS:
            event = packed_events.uncompressed_rows(event)
        if captured.schema is not None:
            self._pieces.append_row(captured.schema, event)
        elif event[4] in events.UPDATES:
            self._pieces.append_watermarks(event)
        else:
            self._pieces.skip_row()

    def _on_partial_rows(self, event: bytes) -> None:
        captured = self._mapped_table(event)
        if captured.schema is not None:
            self._relations.reject(
                captured.schema.table, "an update was logged with parts of JSON values only: binlog_row_value_options"
                " was not empty",
            )
        self._pieces.skip_row()

    def _mapped_table(self, event: bytes) -> Captured:
        number = event[_BODY:_TABLE_ID_END]
        captured = self._state.tables.get(number)
        if captured is None and number == _NO_TABLE:
            return Captured(None)
        if captured is None:
            raise SourceError(f"{self._where}: rows of a table that the log did not describe", next_step="run again")
        return captured

    def _on_payload(self, event: bytes) -> None:
        self._payload = packed_events.unpack_payload(event)

    def _on_xa_prepare(self, event: bytes) -> None:
        name, is_one_phase = control_events.read_xa_prepare(event)
        if is_one_phase:
            self._pieces.commit_held()
        else:
            self._pieces.prepare(name, self.token)
        self._state.end()

    def _on_query(self, event: bytes) -> None:
        if event[4] == BINLOG.QUERY_EVENT:
            # One or both of them come with every transaction.
            statement = events.statement_bytes(event)
            if statement == b"BEGIN":
                self._state.enter(event)
                return
            if statement == b"COMMIT":
                self._state.commit()
                return
        self._statements.apply(event, control_events.read_query(event))
