"""Every prerequisite of a MySQL or MariaDB source, met or not, each with the statement that mends it.

Promises: all problems at once, in an order in which their fixes can be run one after another; nothing is changed; no
row, password or connection string is shown. A check that is ``ok`` and has a detail is met, with something to know.
This module checks the server, the role and what dblake needs of its own; ``preflight_tables`` the captured tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql

from dblake.core.errors import SourceError
from dblake.core.names import abbreviated
from dblake.core.source import Check
from dblake.source.mysql import statements
from dblake.source.mysql.catalog_facts import Server, Survey, retention_seconds, survey
from dblake.source.mysql.connection import connect, explained
from dblake.source.mysql.finding import finding, script
from dblake.source.mysql.preflight_tables import table_findings
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.statements import WATERMARK_ROWS, spelled

#: The first versions whose log can say all that is needed of columns (binlog_row_metadata).
_OLDEST = {"mysql": (8, 0, 1), "mariadb": (10, 5, 0)}
_SHORT_SECONDS = 7 * 86_400
#: Reasons that may pass, which the connection's own words leave at the driver's class.
_UNREACHABLE = (
    ("ConnectionRefusedError", "connection refused: nothing listens there"),
    ("TimeoutError", "no answer: timed out"),
    ("timed out", "no answer: timed out"),
    ("No route to host", "no route to that host"),
    ("unreachable", "the network is unreachable"),
    ("Too many connections", "the server takes no more connections"),
)


def preflight(settings: MysqlSettings) -> list[Check]:
    """All checks; only the one named ``connect`` if the capture role cannot even connect."""
    try:
        conn = connect(settings, purpose="preflight")
    except SourceError as error:
        return [Check("connect", False, _reason(error), error.next_step)]
    try:
        return checks(conn, settings)
    finally:
        conn.close()


def checks(conn: pymysql.Connection, settings: MysqlSettings) -> list[Check]:
    """All checks over a connection of the capture role's, or of an administrator's."""
    with explained(settings), conn.cursor() as cur:
        return list(findings(survey(cur, settings), settings))


def findings(facts: Survey, settings: MysqlSettings) -> Iterator[Check]:
    """What the facts mean."""
    yield finding("connect")
    yield from _server(facts.server, settings)
    yield from _log(facts.server, settings)
    yield from _replica(facts.server, settings)
    yield _role(facts, settings)
    yield from _watermarks(facts, settings)
    yield from table_findings(facts, settings)


def _reason(error: SourceError) -> str:
    text = f"{error.what} {error.__cause__!r}"
    return next((f"{meaning} (source.host, source.port)" for words, meaning in _UNREACHABLE if words in text),
                error.what)


def _server(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    oldest = _OLDEST[settings.flavour]
    since = ".".join(map(str, oldest[:2]))
    old = server.version.number < oldest
    yield finding(
        "server_version", f"{server.version}; dblake is for {since} and newer" if old else "",
        f"use a server of version {since} or newer",
    )
    yield finding(
        "read_only", "the server is read-only: watermarks cannot be written there" if server.on("read_only") else "",
        "set source.host to the primary",
    )
    number = server.variables.get("server_id", "0")
    same = number == str(settings.server_id)
    yield finding(
        "server_id",
        "the server's server_id is 0: it lets nobody read its log" if number == "0"
        else f"source.server_id is the server's own, {number}" if same else "",
        "set source.server_id to a number that neither the server nor a replica of it has" if same
        else statements.set_variable(settings, "server_id", "1"),
    )


def _log(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    def wanted(variable: str, value: str, why: str, *, known: bool = False) -> Check:
        found = server.variables.get(variable, value)
        return finding(
            variable, f"{variable} is {found}: {why}" if found != value else "",
            statements.set_variable(settings, variable, f"'{value}'"), known=known,
        )

    yield finding(
        "log_bin", "" if server.on("log_bin") else "the server writes no log",
        "start the server with the option --log-bin",
    )
    yield wanted("binlog_format", "ROW", "changes are logged as statements, which cannot be applied to rows")
    yield wanted(
        "binlog_row_image", "FULL",
        "columns that a change does not touch are not logged; they are filled in from dumps and earlier changes",
        known=True,
    )
    yield wanted("binlog_row_metadata", "FULL", "the log does not say what its columns are called and what they hold")
    if settings.flavour == "mysql":
        yield finding(
            "binlog_order_commits",
            "" if server.on("binlog_order_commits")
            else "a dump may read a row older than the log before it: commits show in another order than logged",
            statements.set_variable(settings, "binlog_order_commits", "ON"),
        )
        partial = server.variables.get("binlog_row_value_options", "")
        yield finding(
            "binlog_row_value_options",
            f"it is {partial}: of changed JSON only differences are logged" if partial else "",
            statements.set_variable(settings, "binlog_row_value_options", "''"),
        )
    yield finding("binlog_retention", _retention(server), known=True)


def _retention(server: Server) -> str:
    seconds = retention_seconds(server.variables)
    if seconds is None:
        return "old log is never removed by itself: it can fill the server's disk"
    if seconds >= _SHORT_SECONDS:
        return ""
    return f"the server removes log after {seconds / 3600:g} hours: a capture stopped longer finds a gap"


def _replica(server: Server, settings: MysqlSettings) -> Iterator[Check]:
    logs = server.on("log_replica_updates", "log_slave_updates")
    yield finding(
        "replica_log", "this is a replica that does not log what it replicates" if server.replica and not logs else "",
        "start the server with the option --log-slave-updates, or set source.host to the primary",
    )
    if settings.flavour == "mariadb":
        return  # commits in the primary's order whatever its parallel mode
    workers = server.variables.get("replica_parallel_workers", server.variables.get("slave_parallel_workers", "0"))
    preserved = workers in ("0", "1") or server.on("replica_preserve_commit_order", "slave_preserve_commit_order")
    yield finding(
        "replica_order", "" if not server.replica or preserved
        else "this is a replica that commits in another order than its primary",
        "STOP REPLICA; " + statements.set_variable(settings, "replica_preserve_commit_order", "ON") + "; START REPLICA",
    )


def _role(facts: Survey, settings: MysqlSettings) -> Check:
    if facts.role is None:
        account = statements.new_account(settings)
        return finding(
            "role", f"there is no user {settings.user}",
            script([statements.create_user(account, statements.PASSWORD_LEFT_OPEN), statements.grant_log(account)]),
        )
    grants, account = facts.role.grants, facts.role.account
    if not (grants.has("REPLICATION SLAVE") and grants.has("REPLICATION CLIENT")):
        return finding(
            "role", f"user {settings.user} lacks REPLICATION SLAVE or REPLICATION CLIENT", statements.grant_log(account)
        )
    if grants.has("SUPER") or grants.has("CREATE USER"):
        return finding(
            "role", f"user {settings.user} is an administrator; capture needs far less",
            f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {spelled(account)}; -- then preflight --init", known=True,
        )
    return finding("role")


def _watermarks(facts: Survey, settings: MysqlSettings) -> Iterator[Check]:
    found = facts.watermarks
    create = [statements.create_watermark_schema(settings), statements.create_watermark_table(settings)]
    if found is None:
        detail = f"there is no table {settings.watermark_schema}.{statements.WATERMARK_TABLE} that the user may see"
    else:
        create[0] = statements.move_watermark_table(settings)
        detail = "" if found.well_formed else "it is not (id int primary key, value varchar(36)) of engine InnoDB"
    yield finding("watermark_table", detail, script(create))
    rows = found.rows if found else None
    missing = "" if rows is None else abbreviated([str(n) for n in WATERMARK_ROWS if n not in rows])
    yield finding(
        "watermark_rows", "they cannot be seen yet" if rows is None else f"missing: {missing}" if missing else "",
        statements.insert_watermark_rows(settings),
    )
    account = facts.role.account if facts.role else statements.new_account(settings)
    yield finding(
        "watermark_privileges", "" if may_mark(facts, settings)
        else f"user {settings.user} may not read and update the watermark table",
        statements.grant_watermarks(settings, account),
    )


def may_mark(facts: Survey, settings: MysqlSettings) -> bool:
    """True if the capture role may read and update the watermark table."""
    role, place = facts.role, (settings.watermark_schema, statements.WATERMARK_TABLE)
    return role is not None and role.grants.has("SELECT", *place) and role.grants.has("UPDATE", *place)
