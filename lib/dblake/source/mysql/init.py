"""What a privileged user does once so that capture can run: role, grants, watermark table.

Promises: only what is missing is done, so it may be run again at any time, after new tables for instance; settings of
the server and tables of applications are left to people. Neither server puts such statements into a transaction: each
stands for itself, and what was done before one fails need not be done again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pymysql

from dblake.core.errors import PrerequisitesNotMet
from dblake.core.source import InitPlan
from dblake.source.mysql import statements
from dblake.source.mysql.catalog_facts import Survey, survey
from dblake.source.mysql.connection import connect, explained
from dblake.source.mysql.preflight import findings, may_mark
from dblake.source.mysql.settings import MysqlSettings

_DONE_HERE = ("role", "watermark_table", "watermark_rows", "watermark_privileges", "table_privileges")
_LEFT_TO_PEOPLE = ("binlog_row_image", "engines", "foreign_keys", "primary_key")
_LACKS_PRIVILEGE = (1044, 1142, 1227, 1410)


def plan_init(settings: MysqlSettings, admin: str, admin_password: str) -> InitPlan:
    """What ``run_init`` would do, as a script in which only the role's password is left open."""
    conn = _connect(settings, admin, admin_password)
    try:
        return _plan(_facts(conn, settings), settings)
    finally:
        conn.close()


def run_init(settings: MysqlSettings, admin: str, admin_password: str) -> InitPlan:
    """Prepares the server and returns what was done."""
    conn = _connect(settings, admin, admin_password)
    try:
        facts = _facts(conn, settings)
        with _told(settings, admin), conn.cursor() as cur:
            for step in _steps(facts, settings, settings.password):
                cur.execute(step)
        return _plan(facts, settings)
    finally:
        conn.close()


def _plan(facts: Survey, settings: MysqlSettings) -> InitPlan:
    said = [c for c in findings(facts, settings) if c.detail]
    left = [c for c in said if c.check in _LEFT_TO_PEOPLE or not (c.ok or c.check in _DONE_HERE)]
    return InitPlan(
        tuple(f"{step};" for step in _steps(facts, settings, statements.PASSWORD_LEFT_OPEN)),
        tuple(f"{c.detail}. Next: {' '.join(c.fix.split())}" if c.fix else c.detail for c in left),
    )


def _connect(settings: MysqlSettings, admin: str, admin_password: str) -> pymysql.Connection:
    try:
        return connect(replace(settings, user=admin, password=admin_password), purpose="init")
    except PrerequisitesNotMet as error:
        raise PrerequisitesNotMet(
            f"{error.what} (as {admin})", next_step="correct --admin-user and --admin-password-env, or source's host"
        ) from error


def _facts(conn: pymysql.Connection, settings: MysqlSettings) -> Survey:
    with explained(settings), conn.cursor() as cur:
        facts = survey(cur, settings)
    if facts.watermarks and not facts.watermarks.well_formed:
        raise PrerequisitesNotMet(
            f"source {settings.name}: {settings.watermark_schema}.watermark is there, but not as dblake makes it",
            next_step="move it away, or set source.watermark_schema to a database of its own",
        )
    return facts


def _steps(facts: Survey, settings: MysqlSettings, password: str) -> Iterator[str]:
    role, marks = facts.role, facts.watermarks
    account = role.account if role else statements.new_account(settings)
    if role is None:
        yield statements.create_user(account, password)
    if role is None or not (role.grants.has("REPLICATION SLAVE") and role.grants.has("REPLICATION CLIENT")):
        yield statements.grant_log(account)
    for table in facts.tables:
        if not facts.may_select(table):
            yield statements.grant_select(account, table.schema_name, table.table_name)
    if marks is None:
        yield statements.create_watermark_schema(settings)
        yield statements.create_watermark_table(settings)
    if marks is None or not set(statements.WATERMARK_ROWS) <= (marks.rows or set()):
        yield statements.insert_watermark_rows(settings)
    if not may_mark(facts, settings):
        yield statements.grant_watermarks(settings, account)


@contextmanager
def _told(settings: MysqlSettings, admin: str) -> Iterator[None]:
    """Says what a refused statement of the administrator's means; the driver's own text may quote it."""
    try:
        yield
    except pymysql.Error as error:
        number = error.args[0] if error.args else 0
        if number in _LACKS_PRIVILEGE:
            raise PrerequisitesNotMet(
                f"source {settings.name}: user {admin} may not do all that --init does",
                next_step="hand the output of preflight --init --dry-run to an administrator of the server",
            ) from error
        raise PrerequisitesNotMet(
            f"source {settings.name}: --init failed: {type(error).__name__} {number}",
            next_step="run preflight, which names what stands in the way",
        ) from error
