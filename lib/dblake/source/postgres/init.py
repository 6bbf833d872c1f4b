"""What a privileged user does once so that capture can run: role, grants, watermark table, publication, slot.

Promises: only what is missing is done, so it may be run again at any time, after new tables for instance; no write of
an application is made to fail (tables that nothing would identify rows of are left out, by name); a slot that is lost
or is somebody else's is never repaired or replaced. All of it is one transaction, but for the slot, which PostgreSQL
makes only in one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection, encrypt_password

from dblake.core.errors import PositionLost, PrerequisitesNotMet
from dblake.core.source import InitPlan
from dblake.source.postgres import ddl_trigger, statements
from dblake.source.postgres.catalog_facts import WATERMARK_ROWS, Survey, survey
from dblake.source.postgres.connection import connect, explained
from dblake.source.postgres.preflight import ALL_OPERATIONS, findings, usable
from dblake.source.postgres.settings import PostgresSettings

_LEFT_TO_PEOPLE = (
    "replica_identity", "primary_key", "generated_columns", "unlogged_tables", "publication_filters", "row_security",
)


def plan_init(settings: PostgresSettings, admin: str, admin_password: str) -> InitPlan:
    """What ``run_init`` would do, as a script for psql in which only the role's password is left open."""
    conn = _connect(settings, admin, admin_password)
    try:
        return _plan(conn, _facts(conn, settings), settings)
    finally:
        conn.close()


def run_init(settings: PostgresSettings, admin: str, admin_password: str) -> InitPlan:
    """Prepares the database and returns what was done. Raises PositionLost if the slot is lost."""
    conn = _connect(settings, admin, admin_password)
    try:
        facts = _facts(conn, settings)
        plan = _plan(conn, facts, settings)
        # Hashed here, so that the server's log cannot show the password.
        password = sql.Literal(encrypt_password(settings.password, settings.user, conn, "scram-sha-256"))
        with _told(settings, admin), conn.cursor() as cur:
            cur.execute("BEGIN")
            for step in _steps(facts, settings, password):
                cur.execute(step)
            cur.execute("COMMIT")
            for step in _slot(facts, settings):
                cur.execute(step)
        return plan
    finally:
        conn.close()


def _plan(conn: connection, facts: Survey, settings: PostgresSettings) -> InitPlan:
    placeholder = sql.Literal("<the password of source.password>")
    with conn.cursor() as cur:
        steps = [step.as_string(cur) + ";" for step in _steps(facts, settings, placeholder)]
        slot = [step.as_string(cur) + ";" for step in _slot(facts, settings)]
        left = [f.check(cur) for f in findings(facts, settings) if f.name in _LEFT_TO_PEOPLE and f.detail]
    return InitPlan(
        (*(["BEGIN;", *steps, "COMMIT;"] if steps else []), *slot),
        tuple(f"{c.detail}. Next: {' '.join(c.fix.split())}" if c.fix else c.detail for c in left),
    )


def _connect(settings: PostgresSettings, admin: str, admin_password: str) -> connection:
    try:
        return connect(replace(settings, user=admin, password=admin_password), purpose="init")
    except PrerequisitesNotMet as error:
        raise PrerequisitesNotMet(
            f"{error.what} (as {admin})", next_step="correct --admin-user and --admin-password-env, or source's host"
        ) from error


def _facts(conn: connection, settings: PostgresSettings) -> Survey:
    with explained(settings), conn.cursor() as cur:
        facts = survey(cur, settings)
    where = f"source {settings.name}: slot {settings.slot}"
    slot = facts.slot
    if slot and slot.wal_status == "lost":
        raise PositionLost(
            f"{where} is lost: the server removed log it still needed, a gap; --init does not repair it",
            next_step="capture --accept-gap makes the slot anew and dumps all tables again",
        )
    if slot and not usable(slot, facts.server, settings):
        raise PrerequisitesNotMet(
            f"{where} is {slot.kind}, of plugin {slot.plugin} and database {slot.database}; --init does not replace it",
            next_step="set source.slot to another name, or source.plugin to the slot's",
        )
    marks = facts.watermarks
    if marks and marks.oid is not None and not marks.well_formed:
        raise PrerequisitesNotMet(
            f"source {settings.name}: {settings.watermark_schema}.watermark is there, but not as dblake makes it",
            next_step="move it away, or set source.watermark_schema to a schema of its own",
        )
    return facts


def _steps(facts: Survey, settings: PostgresSettings, password: sql.Composable) -> Iterator[sql.Composable]:
    role, marks = facts.role, facts.watermarks
    if role is None:
        yield statements.create_role(settings, password)
    elif not (role.may_login and role.may_replicate):
        yield statements.alter_role(settings, "LOGIN REPLICATION")
    if role is None or not role.may_connect:
        yield statements.grant_connect(settings)
    if closed := {t.schema for t in facts.tables if not t.may_use_schema}:
        yield statements.grant_usage(settings, closed)
    if unread := [t for t in facts.tables if not t.may_select]:
        yield statements.grant_select(settings, unread)
    if marks is None:
        yield statements.create_watermark_schema(settings)
    if marks is None or marks.oid is None:
        yield statements.create_watermark_table(settings)
    if marks is None or not set(WATERMARK_ROWS) <= (marks.rows or set()):
        yield statements.insert_watermark_rows(settings)
    if marks is None or not marks.may_use_schema:
        yield statements.grant_usage(settings, [settings.watermark_schema])
    if marks is None or not marks.may_read_and_update:
        yield statements.grant_watermarks(settings)
    if settings.plugin == "pgoutput":
        yield from _publication(facts, settings)
    if settings.log_ddl and not facts.ddl_triggers:
        yield from ddl_trigger.create(settings)


def _publication(facts: Survey, settings: PostgresSettings) -> Iterator[sql.Composable]:
    publication, marks = facts.publication, facts.watermarks
    publishable = [t for t in facts.tables if t.publishable]
    if publication is None:
        yield statements.create_publication(settings, publishable)
        return
    missing = [t for t in publishable if not publication.holds(t.oid, t.schema_oid)]
    no_marks = marks is None or marks.oid is None or not publication.holds(marks.oid, marks.schema_oid)
    if missing or (no_marks and not publication.all_tables):
        yield statements.add_tables(settings, missing, watermarks=no_marks)
    if not publication.all_operations:
        yield statements.set_publication(settings, ALL_OPERATIONS)
    if not publication.via_root:
        yield statements.set_publication(settings, "publish_via_partition_root = true")


def _slot(facts: Survey, settings: PostgresSettings) -> Iterator[sql.Composable]:
    if facts.slot is None:
        yield statements.create_slot(settings, facts.server.version)


@contextmanager
def _told(settings: PostgresSettings, admin: str) -> Iterator[None]:
    """Says what a refused statement of the administrator's means; the driver's own text may quote it."""
    try:
        yield
    except psycopg2.errors.InsufficientPrivilege as error:
        if "as an output plugin" in str(error):
            raise PrerequisitesNotMet(
                f"source {settings.name}: the server does not let {settings.plugin} be used as an output plugin",
                next_step="run preflight, which names the statement that does",
            ) from error
        raise PrerequisitesNotMet(
            f"source {settings.name}: user {admin} may not do all that --init does",
            next_step="hand the output of preflight --init --dry-run to an administrator of the server",
        ) from error
    except psycopg2.Error as error:
        raise PrerequisitesNotMet(
            f"source {settings.name}: --init failed: {type(error).__name__} (SQLSTATE {error.pgcode})",
            next_step="run preflight, which names what stands in the way",
        ) from error
