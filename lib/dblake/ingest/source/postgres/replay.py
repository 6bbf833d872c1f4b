"""The log before a stream's start, read again: the last heartbeat in it proves which history the server has.

Place: before ``pieces``, for watermarks without a table. No row has the last heartbeat then. So the slot keeps the log
from the last landed heartbeat on, and each stream begins there. Guarantee: nothing before the start is framed, and the
tables it describes are known. Whether the heartbeat is the captured one is decided by ``capture.history``.
"""

from __future__ import annotations

from dblake.base.core.log_places import lsn_number
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import HEARTBEAT_ROW, LogPiece
from dblake.ingest.source.postgres import frames, pgoutput
from dblake.ingest.source.postgres.relations import Relations
from dblake.ingest.source.postgres.watermarks import parse_watermark_message
from dblake.payloads.formats import pgoutput as letters


class Replay:
    """The messages before ``start``. The stream passes each to ``take`` until that returns False, or ``is_over``."""

    def __init__(self, start: ResumePoint, tables: Relations) -> None:
        self._start, self._tables = start, tables
        self._end, self._lsn = lsn_number(start.token), 0
        self._heartbeat = ""
        self.heartbeat_lsn: int | None = None
        """Where the last heartbeat before the start is."""
        self.is_over = False

    def take(self, payload: bytes) -> bool:
        """Read a message; return False for a Begin at or behind the start, which belongs to the stream."""
        kind = payload[0]
        if kind == letters.BEGIN:
            self._lsn = int(pgoutput.parse_begins([payload])["lsn"][0])
            self.is_over = self._lsn >= self._end
            return not self.is_over
        if kind == letters.RELATION:
            self._tables.register(payload)
        elif kind == letters.COMMIT:
            self.is_over = pgoutput.parse_commit_end(payload) >= self._end
        elif kind == letters.MESSAGE:
            mark = parse_watermark_message(payload)
            if mark and mark[0] == HEARTBEAT_ROW:
                self._heartbeat, self.heartbeat_lsn = mark[1], self._lsn
        return True

    def build_piece(self) -> LogPiece:
        """Return the piece that shows the last heartbeat before the start."""
        return LogPiece(frames.NO_ROWS, self._start, replayed_heartbeat=self._heartbeat)


class HeldHeartbeats:
    """How far the slot may release the log: not behind the last heartbeat that has landed."""

    def __init__(self) -> None:
        self._lsns: list[int] = []

    def add(self, lsn: int) -> None:
        """Note a heartbeat whose transaction commits at an LSN, in log order."""
        self._lsns.append(lsn)

    def releasable(self, landed: int) -> int:
        """Return up to where the log may be released once everything before the LSN ``landed`` has landed.

        A slot whose confirmed position is a commit's own sends that transaction again.
        """
        before = [lsn for lsn in self._lsns if lsn < landed]
        self._lsns = self._lsns[max(len(before) - 1, 0):]
        return before[-1] if before else landed
