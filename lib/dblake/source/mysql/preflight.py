"""Checks every prerequisite of a MySQL or MariaDB source; each unmet one has the statement that corrects it.

Promises all problems at once, in an order in which their fixes can be run one after another; changes nothing; shows no
row, password or connection string. A check that is ``ok`` and has a detail is met, with a note. This module checks the
server, the role and dblake's own table; ``preflight_tables`` checks the captured tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql

from dblake.core.errors import SourceError
from dblake.core.names import abbreviated
from dblake.core.source import Check
from dblake.source.mysql import statements
from dblake.source.mysql.catalog_facts import CatalogFacts, Server, read_facts
from dblake.source.mysql.connection import connect
from dblake.source.mysql.driver_errors import describe_unreachable, translate_errors
from dblake.source.mysql.finding import finding, script
from dblake.source.mysql.log_retention import retention_seconds
from dblake.source.mysql.preflight_tables import table_findings
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.statements import WATERMARK_ROWS, quote_account
from dblake.source.mysql.watermarks import WATERMARK_TABLE

_OLDEST = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}
"""The first versions whose log describes columns in full (binlog_row_metadata)."""
_SHORT_RETENTION_SECONDS = 7 * 86_400


def preflight(settings: MysqlSettings) -> list[Check]:
    """Return all checks; only ``connect`` if the capture role cannot connect."""
    try:
        conn = connect(settings, purpose="preflight")
    except SourceError as error:
        return [Check("connect", False, describe_unreachable(error), error.next_step)]
    try:
        return checks(conn, settings)
    finally:
        conn.close()


def checks(conn: pymysql.Connection, settings: MysqlSettings) -> list[Check]:
    """Return all checks, over a connection of the capture role or of an administrator."""
    with translate_errors(settings), conn.cursor() as cur:
        return list(findings(read_facts(cur, settings), settings))


def findings(facts: CatalogFacts, settings: MysqlSettings) -> Iterator[Check]:
    """Yield all checks of the facts."""
    yield finding("connect")
    yield from _check_server(facts.server, settings)
    yield from _check_log(facts.server, settings)
    yield from _check_replica(facts.server, settings)
    yield _check_role(facts, settings)
    yield from _check_watermarks(facts, settings)
    yield from table_findings(facts, settings)


def _check_server(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    oldest = _OLDEST[settings.flavour]
    since = ".".join(map(str, oldest[:2]))
    is_old = server.version.number < oldest
    yield finding(
        "server_version", f"{server.version}; dblake supports {since} and newer" if is_old else "",
        f"use a server of version {since} or newer",
    )
    yield finding(
        "read_only", "the server is read-only: watermarks cannot be written there" if server.is_on("read_only") else "",
        "set source.host to the primary",
    )
    number = server.variables.get("server_id", "0")
    is_same = number == str(settings.server_id)
    yield finding(
        "server_id",
        "the server's server_id is 0: it rejects replicas, so its log cannot be read" if number == "0"
        else f"source.server_id is the server's own, {number}" if is_same else "",
        "set source.server_id to a number that neither the server nor a replica of it has" if is_same
        else statements.set_variable(settings, "server_id", "1"),
    )


def _check_log(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    def require(variable: str, value: str, why: str, *, is_note: bool = False) -> Check:
        current = server.variables.get(variable, value)
        return finding(
            variable, f"{variable} is {current}: {why}" if current != value else "",
            statements.set_variable(settings, variable, f"'{value}'"), is_note=is_note,
        )

    yield finding(
        "log_bin", "" if server.is_on("log_bin") else "the server writes no log",
        "start the server with the option --log-bin",
    )
    yield require("binlog_format", "ROW", "changes are logged as statements, which cannot be applied to rows")
    yield require(
        "binlog_row_image", "FULL",
        "columns that a change does not touch are not logged; they are filled in from dumps and earlier changes",
        is_note=True,
    )
    yield require("binlog_row_metadata", "FULL", "the log lacks the names and the full types of columns")
    if settings.flavour == "mysql":
        yield finding(
            "binlog_order_commits",
            "" if server.is_on("binlog_order_commits")
            else "a dump may read a row older than the log before it: commits show in another order than logged",
            statements.set_variable(settings, "binlog_order_commits", "ON"),
        )
        partial = server.variables.get("binlog_row_value_options", "")
        yield finding(
            "binlog_row_value_options",
            f"it is {partial}: of changed JSON only differences are logged" if partial else "",
            statements.set_variable(settings, "binlog_row_value_options", "''"),
        )
    yield finding("binlog_retention", _describe_retention(server), is_note=True)


def _describe_retention(server: Server) -> str:
    seconds = retention_seconds(server.variables)
    if seconds is None:
        return "the server never expires old log: it can fill the server's disk"
    if seconds >= _SHORT_RETENTION_SECONDS:
        return ""
    return f"the server expires log after {seconds / 3600:g} hours: a capture stopped for longer finds a gap"


def _check_replica(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    has_log = server.is_on("log_replica_updates", "log_slave_updates")
    yield finding(
        "replica_log",
        "this is a replica that does not log what it replicates" if server.is_replica and not has_log else "",
        "start the server with the option --log-slave-updates, or set source.host to the primary",
    )
    if settings.flavour == "mariadb":
        return  # commits in the primary's order whatever its parallel mode
    workers = server.variables.get("replica_parallel_workers", server.variables.get("slave_parallel_workers", "0"))
    is_ordered = workers in ("0", "1") or server.is_on("replica_preserve_commit_order", "slave_preserve_commit_order")
    yield finding(
        "replica_order", "" if not server.is_replica or is_ordered
        else "this is a replica that commits in another order than its primary",
        "STOP REPLICA; " + statements.set_variable(settings, "replica_preserve_commit_order", "ON") + "; START REPLICA",
    )


def _check_role(facts: CatalogFacts, settings: MysqlSettings) -> Check:
    if facts.role is None:
        account = statements.new_account(settings)
        return finding(
            "role", f"there is no user {settings.user}",
            script([statements.create_user(account, statements.PASSWORD_PLACEHOLDER), statements.grant_log(account)]),
        )
    grants, account = facts.role.grants, facts.role.account
    if not (grants.has("REPLICATION SLAVE") and grants.has("REPLICATION CLIENT")):
        return finding(
            "role", f"user {settings.user} lacks REPLICATION SLAVE or REPLICATION CLIENT", statements.grant_log(account)
        )
    if grants.has("SUPER") or grants.has("CREATE USER"):
        return finding(
            "role", f"user {settings.user} is an administrator; capture needs far less",
            f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {quote_account(account)}; -- then preflight --init",
            is_note=True,
        )
    return finding("role")


def _check_watermarks(facts: CatalogFacts, settings: MysqlSettings) -> Iterator[Check]:
    table = facts.watermarks
    create = [statements.create_watermark_schema(settings), statements.create_watermark_table(settings)]
    if table is None:
        detail = f"there is no table {settings.watermark_schema}.{WATERMARK_TABLE} that the user may see"
    else:
        create[0] = statements.move_watermark_table(settings)
        detail = "" if table.is_well_formed else "it is not (id int primary key, value varchar(36)) of engine InnoDB"
    yield finding("watermark_table", detail, script(create))
    is_logged = facts.server.logs(settings.watermark_schema)
    yield finding(
        "watermark_log", "" if is_logged
        else f"the server leaves changes of {settings.watermark_schema} out of its log, so that no dump could end",
        "start the server without binlog-do-db and binlog-ignore-db, or let its log have this schema",
    )
    rows = table.rows if table else None
    missing = "" if rows is None else abbreviated([str(n) for n in WATERMARK_ROWS if n not in rows])
    yield finding(
        "watermark_rows", "they cannot be read yet" if rows is None else f"missing: {missing}" if missing else "",
        statements.insert_watermark_rows(settings),
    )
    account = facts.role.account if facts.role else statements.new_account(settings)
    yield finding(
        "watermark_privileges", "" if can_mark(facts, settings)
        else f"user {settings.user} may not read and update the watermark table",
        statements.grant_watermarks(settings, account),
    )


def can_mark(facts: CatalogFacts, settings: MysqlSettings) -> bool:
    """Return True if the capture role may read and update the watermark table."""
    role, table = facts.role, (settings.watermark_schema, WATERMARK_TABLE)
    return role is not None and role.grants.has("SELECT", *table) and role.grants.has("UPDATE", *table)
