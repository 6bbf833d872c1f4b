"""Prepares a database for capture as a privileged user: role, grants, watermark table, publication, slot.

Guarantee: idempotent, so it can be run again at any time, after new tables for instance. No write to an existing table
starts to fail: tables without an effective replica identity are named and not published, nor is their schema. A slot
that is lost or belongs to another consumer is never replaced. All changes are one transaction, except the slot, which
PostgreSQL creates only in a transaction of its own.
"""

from __future__ import annotations

from dataclasses import replace

from psycopg2 import sql
from psycopg2.extensions import connection, encrypt_password

from dblake.base.core.errors import ACCEPT_GAP, PositionLost, PrerequisitesNotMet
from dblake.base.core.source import InitPlan
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts
from dblake.ingest.source.postgres.catalog_queries import read_facts
from dblake.ingest.source.postgres.connection import connect, open_cursor
from dblake.ingest.source.postgres.driver_errors import concerns_login, translate_errors, translate_init_errors
from dblake.ingest.source.postgres.future_tables import describe_manual_steps
from dblake.ingest.source.postgres.init_steps import build_slot_steps, build_steps
from dblake.ingest.source.postgres.preflight import findings, is_usable
from dblake.ingest.source.postgres.primary import await_replay, logging_snapshots
from dblake.ingest.source.postgres.settings import PostgresSettings

_SERVER_CHECKS = (
    "server_version", "standby", "log_standby", "standby_version", "watermark_messages", "wal_level",
    "replication_slots", "wal_senders",
)
"""What --init needs of the server and cannot change."""
_MANUAL_CHECKS = (
    *_SERVER_CHECKS,
    "table_storage", "key_constraint", "replica_identity", "primary_key", "generated_columns", "unlogged_tables",
    "publication_filters", "row_security",
)

_WAIT = "5min"
"""How long --init waits for other transactions. A person waits, and not the log: publishing a table waits for long
transactions on it, and a new slot for all that have written, prepared ones included."""


def plan_init(settings: PostgresSettings, admin: str, admin_password: str) -> InitPlan:
    """Return what ``run_init`` would do, as a script for psql with a placeholder for the role's password.

    Raises as ``run_init`` does.
    """
    conn = _connect(settings.at_primary(), admin, admin_password)
    try:
        return _build_plan(conn, _read_facts(conn, settings, admin, admin_password), settings)
    finally:
        conn.close()


def run_init(settings: PostgresSettings, admin: str, admin_password: str) -> InitPlan:
    """Prepare the database and return what was done.

    Raises PositionLost if the slot is lost; PrerequisitesNotMet if the slot or the watermark table is not dblake's, if
    the server lacks what only its configuration can provide, or if the administrator cannot connect or lacks a
    privilege.
    """
    conn = _connect(settings.at_primary(), admin, admin_password)
    try:
        facts = _read_facts(conn, settings, admin, admin_password)
        _require_server(conn, facts, settings)
        plan = _build_plan(conn, facts, settings)
        # Hashed here, so that the server's log cannot show the password.
        password = sql.Literal(encrypt_password(settings.password, settings.user, conn, "scram-sha-256"))
        with translate_init_errors(settings, admin), conn.cursor() as cur:
            cur.execute("BEGIN")
            for step in build_steps(facts, settings, password):
                cur.execute(step)
            cur.execute("COMMIT")
            if settings.primary is None:
                for step in build_slot_steps(facts, settings):
                    cur.execute(step)
            else:
                as_admin = replace(settings, user=admin, password=admin_password)
                await_replay(cur, as_admin)
                with open_cursor(as_admin, purpose="init") as standby, logging_snapshots(as_admin):
                    for step in build_slot_steps(facts, settings):
                        standby.execute(step)
        return plan
    finally:
        conn.close()


def _require_server(conn: connection, facts: CatalogFacts, settings: PostgresSettings) -> None:
    """Raise PrerequisitesNotMet, before anything is changed, if a slot could not be created."""
    with conn.cursor() as cur:
        unmet = [f.check(cur) for f in findings(facts, settings) if f.name in _SERVER_CHECKS and not f.ok]
    if unmet:
        raise PrerequisitesNotMet(
            f"source {settings.name}: {'; '.join(check.detail for check in unmet)}; --init has changed nothing",
            next_step=f"{'; '.join(check.fix for check in unmet)}; then run it again",
        )


def _build_plan(conn: connection, facts: CatalogFacts, settings: PostgresSettings) -> InitPlan:
    placeholder = sql.Literal("<the password of source.password>")
    with conn.cursor() as cur:
        steps = [step.as_string(cur) + ";" for step in build_steps(facts, settings, placeholder)]
        slot = [step.as_string(cur) + ";" for step in build_slot_steps(facts, settings)]
        manual = [f.check(cur) for f in findings(facts, settings) if f.name in _MANUAL_CHECKS and f.detail]
    if slot and settings.primary:
        slot.insert(0, f"-- On the standby {settings.host}:{settings.port}, once it shows all this. Until it ends, run"
                       " SELECT pg_log_standby_snapshot() on the primary:")
    return InitPlan(
        (*(["BEGIN;", *steps, "COMMIT;"] if steps else []), *slot),
        (
            *(f"{c.detail}. Next: {' '.join(c.fix.split())}" if c.fix else c.detail for c in manual),
            *describe_manual_steps(facts),
        ),
    )


def _connect(settings: PostgresSettings, admin: str, admin_password: str) -> connection:
    try:
        conn = connect(replace(settings, user=admin, password=admin_password), purpose="init")
        with conn.cursor() as cur:
            cur.execute("SELECT set_config('lock_timeout', %s, false)", (_WAIT,))
        return conn
    except PrerequisitesNotMet as error:
        login = "correct --admin-user and --admin-password-env"
        raise PrerequisitesNotMet(
            f"{error.what} (as {admin})", next_step=login if concerns_login(error) else error.next_step
        ) from error


def _read_facts(conn: connection, settings: PostgresSettings, admin: str, admin_password: str) -> CatalogFacts:
    """Return the facts of the primary, with the server and the slot of the standby if its log is captured."""
    with translate_errors(settings), conn.cursor() as cur:
        facts = read_facts(cur, settings)
        if settings.primary:
            await_replay(cur, replace(settings, user=admin, password=admin_password))
    if settings.primary:
        standby = _connect(settings, admin, admin_password)
        try:
            with translate_errors(settings), standby.cursor() as cur:
                of_standby = read_facts(cur, settings)
        finally:
            standby.close()
        facts = replace(facts, server=of_standby.server, slot=of_standby.slot)
    where = f"source {settings.name}: slot {settings.slot}"
    slot = facts.slot
    if slot and slot.wal_status == "lost":
        raise PositionLost(
            f"{where} is lost: the server removed log it still needed, a gap; --init does not repair it",
            next_step=ACCEPT_GAP,
        )
    if slot and not is_usable(slot, facts.server):
        raise PrerequisitesNotMet(
            f"{where} is {slot.kind}, of plugin {slot.plugin} and database {slot.database}; --init does not replace it",
            next_step="set source.slot to another name",
        )
    marks = facts.watermarks
    if settings.has_watermark_table and marks and marks.oid is not None and not marks.is_well_formed:
        raise PrerequisitesNotMet(
            f"source {settings.name}: {settings.watermark_schema}.watermark exists, but is not a watermark table",
            next_step="rename it, or set source.watermark_schema to another schema",
        )
    return facts
