"""Identifies the server and its timeline, and detects a promoted standby.

A promotion starts a timeline at a position in the log. Both servers have the log before that position, at equal
positions; what the old primary wrote after it exists on the old primary only. Guarantee: capture resumes on a promoted
standby only if nothing from after that position has landed. Whether the slot exists there is checked by ``slot``.

Protocol: PostgreSQL documentation, "Streaming Replication Protocol", IDENTIFY_SYSTEM and TIMELINE_HISTORY.
"""

from __future__ import annotations

from psycopg2.extensions import connection

from dblake.base.core.errors import ACCEPT_GAP, PositionLost, SourceError
from dblake.base.core.log_places import lsn_number
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.ingest.source.postgres.connection import connect_replication
from dblake.ingest.source.postgres.driver_errors import translate_errors
from dblake.ingest.source.postgres.settings import PostgresSettings


def identity(settings: PostgresSettings) -> ServerIdentity:
    """Return the server's identity: its system identifier, and its timeline as the life of its log."""
    system, timeline, *_ = _execute(settings, "IDENTIFY_SYSTEM")
    return ServerIdentity(server=str(system), log=str(timeline))


def is_promoted_replica(settings: PostgresSettings, known: ServerIdentity, resume: ResumePoint) -> bool:
    """Return True if the server was promoted from a standby of ``known`` and has its log up to ``resume``.

    Raises PositionLost if landing contains log that the standby never received.
    """
    current = identity(settings)
    if current.server != known.server or int(current.log) <= int(known.log):
        return False
    _, history = _execute(settings, f"TIMELINE_HISTORY {int(current.log)}")
    text = str(history, "utf-8") if isinstance(history, (bytes, memoryview)) else str(history)
    ended = _parse_timeline_ends(text).get(known.log)
    if ended is None:
        return False
    # A transaction that landed in part is complete on the standby if its commit record is there.
    landed = max(lsn_number(resume.token), resume.landed.lsn + 1 if resume.landed else 0)
    if landed > lsn_number(ended):
        raise PositionLost(
            f"source {settings.name}: the promoted server has the log up to {ended} only, and landing ends after it, at"
            f" {resume.token}: the log that it never received is a gap",
            next_step=ACCEPT_GAP,
        )
    return True


class TimelineGuard:
    """Shows that a standby still replays the timeline it had: a promotion, or its primary's, begins another one.

    A stream on a standby continues across that in silence. Pieces from before the change must not be taken for later
    ones: whatever was read before ``require_unchanged`` returns is of the timeline from before.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._connection = connect_replication(settings)
        self._timeline = self._read()

    def require_unchanged(self) -> None:
        """Raise SourceError if the server has another timeline now: the log has to be opened again."""
        if (current := self._read()) != self._timeline:
            raise SourceError(
                f"source {self._settings.name}: the standby changed from timeline {self._timeline} to {current}",
                next_step="run capture again",
            )

    def _read(self) -> int:
        _, timeline, *_ = _fetch(self._connection, self._settings, "IDENTIFY_SYSTEM")
        return int(str(timeline))

    def close(self) -> None:
        """Close the connection, which is a WAL sender of the server."""
        self._connection.close()


def _parse_timeline_ends(history: str) -> dict[str, str]:
    """Return the LSN at which each earlier timeline ended: the first two words of each line of a history file."""
    lines = (line.split() for line in history.splitlines() if not line.lstrip().startswith("#"))
    return {words[0]: words[1] for words in lines if len(words) > 1}


def _execute(settings: PostgresSettings, command: str) -> tuple[object, ...]:
    conn = connect_replication(settings)
    try:
        return _fetch(conn, settings, command)
    finally:
        conn.close()


def _fetch(conn: connection, settings: PostgresSettings, command: str) -> tuple[object, ...]:
    with translate_errors(settings), conn.cursor() as cur:
        cur.execute(command)
        row: tuple[object, ...] = cur.fetchone()
        return row
