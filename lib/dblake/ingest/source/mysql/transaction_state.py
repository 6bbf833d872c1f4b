"""The open transaction of the log: where it began, where it ends, and what follows for landing and for resuming.

Above ``pieces``, which holds its rows, and ``log_cursor``; called by ``transactions`` and ``logged_statements``, which
read events. Only this module begins and ends transactions of the piece, so the rule is in one place:

- A transaction begins with a GTID event, or with a BEGIN without one.
- It ends with an XID, a COMMIT, an XA_PREPARE, or the end of a standalone statement.
- It has the position of its first event. The log can be resumed behind its last event.
"""

from __future__ import annotations

from dblake.base.core.errors import ACCEPT_GAP, PositionLost, SourceError
from dblake.ingest.source.mysql import events
from dblake.ingest.source.mysql.gtid_events import Begin
from dblake.ingest.source.mysql.gtids import ExecutedGtids
from dblake.ingest.source.mysql.log_cursor import LogCursor
from dblake.ingest.source.mysql.pieces import PieceBuilder
from dblake.ingest.source.mysql.relations import Captured
from dblake.ingest.source.mysql.runs import Framed


class TransactionState:
    """The open transaction, if there is one, and the GTIDs of all that have ended."""

    def __init__(self, cursor: LogCursor, pieces: PieceBuilder, executed: ExecutedGtids) -> None:
        self.cursor, self.pieces = cursor, pieces
        self.is_open = False
        """True from a transaction's first statement or table on."""
        self.has_ended = False
        """True once a transaction has ended since the last piece was cut."""
        self.tables: dict[bytes, Captured] = {}
        """The open transaction's tables, by their number in the log."""
        self._executed = executed
        self._begun: Begin | None = None
        self._begun_at = 0

    @property
    def token(self) -> str:
        """The resume token of the end of the last whole transaction."""
        return self.cursor.token(str(self._executed))

    @property
    def is_between(self) -> bool:
        """True if no transaction has begun, not even by its GTID."""
        return self._begun is None and not self.is_open

    def begin(self, event: bytes, begun: Begin) -> None:
        """Begin a transaction by its GTID event. Raises SourceError inside another transaction."""
        if self.is_open:
            raise SourceError(
                f"{self.cursor.description}: a transaction begins inside another", next_step="run again"
            )
        self._begun, self._begun_at = begun, self.cursor.start
        if begun.opens:
            self.enter(event)
            if begun.prepared is not None:
                self.pieces.hold()

    def enter(self, event: bytes, *, rows_follow: bool = True) -> None:
        """Begin the transaction's contents with this event, unless they have begun before."""
        if self.is_open:
            return
        if self._begun is None:
            self._begun, self._begun_at = Begin(None), self.cursor.start
        when = self._begun.committed_at
        self.pieces.begin(self.cursor.file_lsn + self._begun_at, events.committed_at(event) if when is None else when)
        self.is_open = rows_follow

    def commit(self) -> None:
        """Commit the open transaction: its rows are whole."""
        self.pieces.commit()
        self.end()

    def end(self) -> None:
        """End the open transaction, with or without rows of its own; the log can be resumed behind it."""
        if self._begun is not None and self._begun.gtid is not None:
            self._executed.add(self._begun.gtid)
        elif self._begun is not None:
            self.cursor.lose_gtids()
        self._begun, self.is_open, self.has_ended = None, False, True
        self.tables.clear()
        self.cursor.mark_resumable()

    def end_run(self, framed: Framed) -> None:
        """Commit the whole transactions of a run at once."""
        self.pieces.append_run(framed, self.cursor.file_lsn)
        for gtid in framed.gtids:
            self._executed.add(gtid)
        if not framed.has_gtids:
            self.cursor.lose_gtids()
        self.cursor.jump(framed.last_start, framed.end)
        self.end()

    def pass_event(self) -> None:
        """Pass an event without effect: between transactions, the log can be resumed behind it."""
        if self.is_between and self.cursor.created and not self.cursor.is_skipping:
            self.cursor.mark_resumable()

    def discard_open(self) -> None:
        """Discard the open transaction: the server crashed before its commit, and began another file.

        Raises PositionLost if a part of it has landed.
        """
        if not self.is_open:
            return
        if not self.pieces.discard_open_transaction():
            raise PositionLost(
                f"{self.cursor.description}: landing has a part of a transaction that was lost in a crash of the"
                " server, a gap",
                next_step=ACCEPT_GAP,
            )
        self._begun, self.is_open = None, False
        self.tables.clear()
