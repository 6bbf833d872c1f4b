"""The primary of a standby whose log is captured: whether the two belong together, and slots on the standby.

Place: behind ``source.primary``, for preflight, ``--init`` and lost slots. The log, the catalog and chunks are read on
the standby, so that all three agree; watermarks, heartbeats and the publication are written on the primary. Guarantee:
a pair whose log would never show the watermarks is rejected by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
from psycopg2.extensions import cursor

from dblake.base.core.errors import PrerequisitesNotMet, SourceError
from dblake.base.core.source import Check
from dblake.ingest.source.postgres import timeline
from dblake.ingest.source.postgres.connection import connect, open_cursor
from dblake.ingest.source.postgres.settings import PostgresSettings

FIRST_VERSION = 160000
"""The first version that decodes its log on a standby."""
_SNAPSHOT_SECONDS = 0.5
_REPLAY_SECONDS = 60.0
_CREATED_SECONDS = 5.0
_POLL_SECONDS = 0.1
_FEEDBACK = """
SELECT current_setting('hot_standby_feedback')::bool, coalesce(current_setting('primary_slot_name', true), '') <> ''
"""


def check_primary(settings: PostgresSettings) -> list[Check]:
    """Return the checks of a standby and its primary; none if the log is the primary's own."""
    if settings.primary is None:
        return []
    primary = settings.at_primary()
    try:
        with open_cursor(primary, purpose="preflight") as cur:
            cur.execute("SELECT pg_is_in_recovery(), current_setting('wal_level')")
            is_standby, wal_level = cur.fetchone()
        is_other = timeline.identity(primary).server != timeline.identity(settings).server
        with open_cursor(settings, purpose="preflight") as cur:
            cur.execute(_FEEDBACK)
            has_feedback, has_slot = cur.fetchone()
    except SourceError as error:
        return [Check("connect", False, f"source.primary: {error.what}", error.next_step)]
    address = f"{primary.host}:{primary.port}"
    checks = [Check("primary", True)]
    if is_other:
        checks = [Check(
            "primary", False, f"the server at source.host is no standby of {address}",
            "set source.primary to the primary of source.host",
        )]
    if is_standby:
        checks.append(Check(
            "standby", False, f"the server at source.primary ({address}) is a standby: it does not accept watermarks",
            "set source.primary to the primary",
        ))
    elif wal_level != "logical":
        checks.append(Check(
            "primary_wal_level", False, f"wal_level of the primary is {wal_level}",
            "on the primary: ALTER SYSTEM SET wal_level = 'logical'; then restart it",
        ))
    return [*checks, _check_feedback(has_feedback=has_feedback, has_slot=has_slot)]


def _check_feedback(*, has_feedback: bool, has_slot: bool) -> Check:
    missing = [name for name, is_set in (("hot_standby_feedback", has_feedback), ("primary_slot_name", has_slot))
               if not is_set]
    if not missing:
        return Check("standby_feedback", True)
    return Check(
        "standby_feedback", True,
        f"{' and '.join(missing)} not set on the standby: VACUUM on the primary may invalidate the slot, a gap",
        "on the standby: set hot_standby_feedback to on, and primary_slot_name to a physical slot of the primary",
    )


def await_replay(primary: cursor, settings: PostgresSettings) -> None:
    """Wait until the standby shows what the primary has written so far. Raises SourceError after a minute.

    A role or database that was created just now is missing there for a moment.
    """
    primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    (end,) = primary.fetchone()
    began = time.monotonic()
    while True:
        try:
            with open_cursor(settings, purpose="init") as standby:
                standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,))
                if standby.fetchone()[0]:
                    return
        except PrerequisitesNotMet:
            if time.monotonic() > began + _CREATED_SECONDS:
                raise
        if time.monotonic() > began + _REPLAY_SECONDS:
            raise SourceError(
                f"source {settings.name}: the standby has not replayed what the primary wrote a minute ago",
                next_step="check that it follows source.primary and how far it lags, then run again",
            )
        time.sleep(_POLL_SECONDS)


@contextmanager
def logging_snapshots(settings: PostgresSettings) -> Iterator[None]:
    """Let the primary log its running transactions within the block: a slot on a standby begins at such a record.

    Only superusers and those they grant it to may call for the record. For other roles a message makes the primary's
    background writer log one within seconds.
    """
    done, primary = threading.Event(), settings.at_primary()
    conn = connect(primary, purpose="slot")

    def log_snapshots() -> None:
        statement = "SELECT pg_log_standby_snapshot()"
        while not done.is_set():
            try:
                with conn.cursor() as cur:
                    cur.execute(statement)
            except psycopg2.errors.InsufficientPrivilege:
                statement = "SELECT pg_logical_emit_message(false, 'dblake', '')"
            except psycopg2.Error:
                # The creation of the slot fails as well, or finds a record of another session.
                return
            done.wait(_SNAPSHOT_SECONDS)

    thread = threading.Thread(target=log_snapshots, name="standby snapshots", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        conn.close()
