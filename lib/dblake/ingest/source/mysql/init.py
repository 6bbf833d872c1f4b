"""Prepares a server for capture, once, as a privileged user: role, grants, watermark table.

Promises that only missing objects are created, so it can be run again at any time, for instance after new tables. The
server's settings and the applications' tables are left to the administrator. Neither server runs such statements in a
transaction; after a failure, a second run continues with what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pymysql

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.base.core.source import InitPlan
from dblake.ingest.source.mysql import statements
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts
from dblake.ingest.source.mysql.catalog_queries import read_facts
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.driver_errors import concerns_login, translate_errors, translate_init_errors
from dblake.ingest.source.mysql.log_retention import RDS_SHOW
from dblake.ingest.source.mysql.preflight import findings
from dblake.ingest.source.mysql.preflight_log import KEPT_HOURS
from dblake.ingest.source.mysql.preflight_role import can_mark
from dblake.ingest.source.mysql.settings import MysqlSettings

_DONE_HERE = (
    "role", "binlog_retention", "watermark_table", "watermark_rows", "watermark_privileges", "table_privileges",
)
"""Checks that ``--init`` makes pass."""
_WARNED_OF = ("binlog_row_image", "engines", "foreign_keys", "primary_key")
"""Checks that are met, and whose notes are worth reading once."""


def plan_init(settings: MysqlSettings, admin: str, admin_password: str) -> InitPlan:
    """Return what ``run_init`` would do, as a script with a placeholder for the role's password."""
    conn = _connect(settings, admin, admin_password)
    try:
        return _plan(_read_facts(conn, settings), settings, _anonymous_hosts(conn))
    finally:
        conn.close()


def run_init(settings: MysqlSettings, admin: str, admin_password: str) -> InitPlan:
    """Prepare the server and return what was done. Raises PrerequisitesNotMet or SourceError."""
    conn = _connect(settings, admin, admin_password)
    try:
        facts = _read_facts(conn, settings)
        with translate_init_errors(settings, admin), conn.cursor() as cur:
            for step in _steps(facts, settings, settings.password):
                cur.execute(step)
        return _plan(facts, settings, _anonymous_hosts(conn))
    finally:
        conn.close()


def _anonymous_hosts(conn: pymysql.Connection) -> list[str]:
    """Return the hosts of users without a name, which the server prefers to a named user of any host."""
    with conn.cursor() as cur:
        try:
            cur.execute("SELECT Host FROM mysql.user WHERE User = '' ORDER BY Host")
        except pymysql.Error:
            return []
        return [str(row[0]) for row in cur.fetchall()]


def _plan(facts: CatalogFacts, settings: MysqlSettings, anonymous_hosts: Sequence[str]) -> InitPlan:
    detailed = [c for c in findings(facts, settings) if c.detail]
    warnings = [c for c in detailed if c.check in _WARNED_OF or not (c.ok or c.check in _DONE_HERE)]
    return InitPlan(
        tuple(f"{step};" for step in _steps(facts, settings, statements.PASSWORD_PLACEHOLDER)),
        (
            *(f"{c.detail}. Next: {' '.join(c.fix.split())}" if c.fix else c.detail for c in warnings),
            *(f"the server's user without a name takes every login from {host}, with its own password. "
              f"Next: DROP USER ''@'{host}'" for host in anonymous_hosts),
        ),
    )


def _connect(settings: MysqlSettings, admin: str, admin_password: str) -> pymysql.Connection:
    try:
        return connect(replace(settings, user=admin, password=admin_password), purpose="init")
    except PrerequisitesNotMet as error:
        login = "correct --admin-user and --admin-password-env"
        raise PrerequisitesNotMet(
            f"{error.what} (as {admin})", next_step=login if concerns_login(error) else error.next_step
        ) from error


def _read_facts(conn: pymysql.Connection, settings: MysqlSettings) -> CatalogFacts:
    with translate_errors(settings), conn.cursor() as cur:
        facts = read_facts(cur, settings)
    if facts.watermarks and not facts.watermarks.is_well_formed:
        raise PrerequisitesNotMet(
            f"source {settings.name}: the table {settings.watermark_schema}.watermark exists, but not with the columns"
            " id and value that dblake creates",
            next_step="move it away, or set source.watermark_schema to a database of its own",
        )
    return facts


def _steps(facts: CatalogFacts, settings: MysqlSettings, password: str) -> Iterator[str]:
    role, marks = facts.role, facts.watermarks
    account = role.account if role else statements.new_account(settings)
    if role is None:
        yield statements.create_user(account, password)
    if role is None or not (role.grants.has("REPLICATION SLAVE") and role.grants.has("REPLICATION CLIENT")):
        yield statements.grant_log(account)
    for schema in facts.partly_granted:
        yield statements.grant_select_in_schema(account, schema)
    for table in facts.tables:
        if table.schema_name not in facts.partly_granted and not facts.can_select(table):
            yield statements.grant_select(account, table.schema_name, table.table_name)
    yield from _log_steps(facts, account)
    if marks is None:
        yield statements.create_watermark_schema(settings)
        yield statements.create_watermark_table(settings)
    if marks is None or not set(statements.WATERMARK_ROWS) <= (marks.rows or set()):
        yield statements.insert_watermark_rows(settings)
    if not can_mark(facts, settings):
        yield statements.grant_watermarks(settings, account)


def _log_steps(facts: CatalogFacts, account: statements.Account) -> Iterator[str]:
    """Yield what Amazon RDS needs so that its binlog stays, and that the capture role may see how long."""
    retention = facts.server.retention
    if retention.provider is None or not retention.provider.expires_log_early:
        return
    if retention.is_readable and not retention.seconds:
        yield statements.keep_log(KEPT_HOURS)
    if facts.role is None or not facts.role.grants.has("EXECUTE", *RDS_SHOW.split(".")):
        yield statements.grant_retention(account)
