"""Which server answers, and whether it carries on the log of another: a standby that was promoted.

Promotion begins a timeline at a place in the log; what was written before that place both servers have, at the same
places, and what the old primary wrote after it only the old one ever had. So a log can be gone on with if nothing from
behind the place has landed. That the slot is there as well, and no further, is judged when the log is opened.

Protocol: PostgreSQL documentation, "Streaming Replication Protocol", IDENTIFY_SYSTEM and TIMELINE_HISTORY.
"""

from __future__ import annotations

from dblake.core.errors import ACCEPT_GAP, PositionLost
from dblake.core.position import ResumePoint
from dblake.core.source import ServerIdentity
from dblake.source.postgres.connection import connect_replication, explained
from dblake.source.postgres.pgoutput import lsn_number
from dblake.source.postgres.settings import PostgresSettings


def identity(settings: PostgresSettings) -> ServerIdentity:
    """The cluster by its system identifier, and its timeline as the life of its log."""
    system, timeline, *_ = _ask(settings, "IDENTIFY_SYSTEM")
    return ServerIdentity(server=str(system), log=str(timeline))


def is_promoted_replica(settings: PostgresSettings, known: ServerIdentity, resume: ResumePoint) -> bool:
    """See Source."""
    now = identity(settings)
    if now.server != known.server or int(now.log) <= int(known.log):
        return False
    _, history = _ask(settings, f"TIMELINE_HISTORY {int(now.log)}")
    ended = _ends(str(history, "utf-8") if isinstance(history, (bytes, memoryview)) else str(history)).get(known.log)
    if ended is None:
        return False
    # A transaction that landed in part is there as a whole if its commit record is.
    landed = max(lsn_number(resume.token), resume.landed.lsn + 1 if resume.landed else 0)
    if landed > lsn_number(ended):
        raise PositionLost(
            f"source {settings.name}: the server that was promoted has the log up to {ended} only, and landing ends"
            f" after it, at {resume.token}: what it never received is a gap",
            next_step=ACCEPT_GAP,
        )
    return True


def _ends(history: str) -> dict[str, str]:
    """Where each timeline before this one ended, as a history file tells it: a line each, its place second."""
    lines = (line.split() for line in history.splitlines() if not line.lstrip().startswith("#"))
    return {words[0]: words[1] for words in lines if len(words) > 1}


def _ask(settings: PostgresSettings, command: str) -> tuple[object, ...]:
    conn = connect_replication(settings)
    try:
        with explained(settings), conn.cursor() as cur:
            cur.execute(command)
            row: tuple[object, ...] = cur.fetchone()
            return row
    finally:
        conn.close()
