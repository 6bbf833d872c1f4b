"""The replication slot: where it can resume, how to recreate it, how to end a stale reader of it.

Guarantee: a slot that no longer holds the resume position, or a log that ends before it, is rejected by name; only
``recreate_slot`` drops a slot, and only a lost one.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass

from psycopg2.extensions import cursor

from dblake.base.core.errors import ACCEPT_GAP, LogWentBack, PositionLost, PrerequisitesNotMet, SourceError
from dblake.base.core.log_places import lsn_number
from dblake.base.core.position import ResumePoint
from dblake.ingest.source.postgres import statements
from dblake.ingest.source.postgres.connection import open_cursor
from dblake.ingest.source.postgres.lsn import lsn_text
from dblake.ingest.source.postgres.primary import logging_snapshots
from dblake.ingest.source.postgres.settings import PLUGIN, PostgresSettings
from dblake.ingest.source.postgres.slot_loss import describe_loss

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotStart:
    """The LSN where the log resumes, and the slot's own, from which on it can be read."""

    token: str
    confirmed: str


def resolve_start(cur: cursor, settings: PostgresSettings, resume: ResumePoint | None) -> SlotStart:
    """Return where to start the stream: at the resume point, or at the slot's own position if there is none.

    Raises PositionLost if the slot no longer holds it, PrerequisitesNotMet if the slot is missing or another
    source's, SourceError if another process reads it.
    """
    cur.execute(
        "SELECT plugin, database, confirmed_flush_lsn::text, wal_status, active_pid,"
        " coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), coalesce((to_jsonb(s) ->> 'conflicting')::bool, false)"
        " FROM pg_replication_slots s WHERE slot_name = %s",
        (settings.slot,),
    )
    slot = cur.fetchone()
    where = f"source {settings.name}: slot {settings.slot}"
    if slot is None:
        if resume:
            raise PositionLost(
                f"{where} does not exist any more, so the log after {resume.token} is a gap", next_step=ACCEPT_GAP
            )
        raise PrerequisitesNotMet(f"{where} does not exist", next_step="run preflight --init")
    plugin, database, confirmed, wal_status, active_pid, reason, is_conflicting = slot
    if plugin != PLUGIN or database != settings.database:
        raise PrerequisitesNotMet(
            f"{where} belongs to plugin {plugin} in database {database}, not to {PLUGIN} in"
            f" {settings.database}",
            next_step="set source.slot to another name, or source.database to the slot's",
        )
    if wal_status == "lost":
        raise PositionLost(f"{where} is lost: {describe_loss(reason, is_conflicting)}, a gap", next_step=ACCEPT_GAP)
    if active_pid is not None:
        raise SourceError(
            f"{where} is in use by server process {active_pid}",
            next_step="stop the other capture of this source, or wait until the server drops its connection",
        )
    if resume is None:
        return SlotStart(str(confirmed), str(confirmed))
    if lsn_number(confirmed) > lsn_number(resume.token):
        raise PositionLost(
            f"{where}: its confirmed_flush_lsn is {confirmed}, after {resume.token} where landing ends: the log between"
            " is a gap",
            next_step=ACCEPT_GAP,
        )
    if settings.primary is None:
        _require_log(cur, where, resume)
    else:
        # A standby may lag, and repeats the log of its primary.
        with open_cursor(settings.at_primary(), purpose="slot") as primary:
            _require_log(primary, where, resume)
    return SlotStart(resume.token, str(confirmed))


def _require_log(cur: cursor, where: str, resume: ResumePoint) -> None:
    """Raise LogWentBack if the server's log ends before the resume point: it went back, and its LSNs come again.

    The server accepts a start in its future and drops each transaction that ends before it.
    """
    cur.execute("SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn()::text END")
    (end,) = cur.fetchone()
    landed = max(lsn_number(resume.token), resume.landed.lsn if resume.landed else 0)
    if end is not None and landed > lsn_number(end):
        raise LogWentBack(
            f"{where}: the server's log ends at {end}, before {lsn_text(landed)} where landing ends: the log went back,"
            " as after a snapshot of its storage was restored, a gap",
            next_step=ACCEPT_GAP,
        )


def terminate_reader(cur: cursor, settings: PostgresSettings) -> None:
    """End the connection that reads from the slot, if there is one."""
    cur.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE slot_name = %s AND active_pid IS NOT NULL",
        (settings.slot,),
    )
    if cur.rowcount:
        logger.info("source %s: terminated another connection that held slot %s", settings.name, settings.slot)


def recreate_slot(cur: cursor, settings: PostgresSettings) -> None:
    """Create the slot if it is missing or lost; the log up to now is then a gap."""
    with logging_snapshots(settings) if settings.primary else nullcontext():
        _recreate_slot(cur, settings)


def _recreate_slot(cur: cursor, settings: PostgresSettings) -> None:
    name = (settings.slot,)
    cur.execute("SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s", name)
    row = cur.fetchone()
    if row and row[0]:
        cur.execute("SELECT pg_drop_replication_slot(%s)", name)
    if not row or row[0]:
        cur.execute(statements.create_slot(settings, cur.connection.server_version))
        logger.info("source %s: recreated slot %s", settings.name, settings.slot)
