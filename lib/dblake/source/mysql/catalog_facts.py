"""Everything preflight and its ``--init`` must know about a server, asked for in a handful of queries.

What the facts mean, and what is to be done about them, is for ``preflight`` and ``init`` to say. All questions about
privileges are asked for the capture role, whoever asks; the role itself is shown no table it has no privilege on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymysql
from pymysql.cursors import Cursor

from dblake.core.names import TableFilter
from dblake.core.schema import TableSchema
from dblake.source.mysql import catalog as catalogue
from dblake.source.mysql.catalog import CatalogueTable
from dblake.source.mysql.connection import ServerVersion, version_of
from dblake.source.mysql.grants import Grants
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.sql_literals import identifier
from dblake.source.mysql.statements import WATERMARK_TABLE, Account, spelled, watermark_table

_VARIABLES = (
    "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_order_commits",
    "binlog_row_value_options", "binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge",
    "server_id", "read_only", "log_slave_updates", "log_replica_updates", "replica_preserve_commit_order",
    "slave_preserve_commit_order", "replica_parallel_workers", "slave_parallel_workers", "innodb_native_foreign_keys",
)
_CASCADES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
"""
_CASCADE = re.compile(
    r"^  CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.MULTILINE
)
_CASCADES_LOGGED = ServerVersion("mysql", (9, 6, 0))
_SHOW_REPLICA = ServerVersion("mysql", (8, 0, 22))
_SHOW_BINARY_LOG = ServerVersion("mysql", (8, 2, 0))
_LACKS_PRIVILEGE = (1044, 1142, 1227)


@dataclass(frozen=True)
class Server:
    """The server and its settings. ``filters`` are the schemas its log is kept to (do) and those it leaves out."""

    version: ServerVersion
    variables: Mapping[str, str]
    replica: bool
    logged_only: frozenset[str] = frozenset()
    not_logged: frozenset[str] = frozenset()

    def on(self, *names: str) -> bool:
        """True if the first of the settings that this server knows is on."""
        return next((self.variables[n] in ("ON", "1") for n in names if n in self.variables), False)


@dataclass(frozen=True)
class Role:
    """The capture role's account and what it may do."""

    account: Account
    grants: Grants


@dataclass(frozen=True)
class Watermarks:
    """The watermark table; ``rows`` is None if they may not be read."""

    well_formed: bool
    rows: frozenset[int] | None


@dataclass(frozen=True)
class Survey:
    """All facts. ``names`` are those of all tables that are seen; ``cascades`` foreign keys by table."""

    server: Server
    role: Role | None
    tables: tuple[CatalogueTable, ...]
    names: tuple[tuple[str, str], ...]
    cascades: Mapping[tuple[str, str], tuple[str, ...]]
    watermarks: Watermarks | None

    def may_select(self, table: CatalogueTable) -> bool:
        """True if the capture role may read the table."""
        return self.role is not None and self.role.grants.has("SELECT", table.schema_name, table.table_name)


def survey(cur: Cursor, settings: MysqlSettings) -> Survey:
    """Asks the server."""
    everything = catalogue.captured_tables(cur, TableFilter(["*.*"]), settings.watermark_schema)
    captured = tuple(t for t in everything if settings.wanted(t.schema_name, t.table_name))
    return Survey(
        server=_server(cur),
        role=_role(cur, settings),
        tables=captured,
        names=tuple((t.schema_name, t.table_name) for t in everything),
        cascades=_cascades(cur, captured),
        watermarks=_watermarks(cur, settings),
    )


def _server(cur: Cursor) -> Server:
    version = version_of(cur.connection)
    cur.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (_VARIABLES,))
    variables = dict(cur.fetchall())
    only: str = ""
    without: str = ""
    try:
        cur.execute("SHOW BINARY LOG STATUS" if version >= _SHOW_BINARY_LOG else "SHOW MASTER STATUS")
        if status := cur.fetchone():
            only, without = status[2], status[3]
    except pymysql.Error as error:
        if error.args[0] not in _LACKS_PRIVILEGE:
            raise
    return Server(version, variables, _is_replica(cur, version), _names(only), _names(without))


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split(",")) - {""}


def _is_replica(cur: Cursor, version: ServerVersion) -> bool:
    if version.flavour == "mariadb":
        cur.execute("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        status = cur.fetchone()
        return status is not None and status[1] != "0"
    try:
        cur.execute("SHOW REPLICA STATUS" if version >= _SHOW_REPLICA else "SHOW SLAVE STATUS")
        return bool(cur.fetchall())
    except pymysql.Error as error:
        if error.args[0] not in _LACKS_PRIVILEGE:
            raise
        return False


def _role(cur: Cursor, settings: MysqlSettings) -> Role | None:
    cur.execute("SELECT CURRENT_USER()")
    user, _, host = str(cur.fetchone()[0]).rpartition("@")
    if user != settings.user:
        cur.execute("SELECT host FROM mysql.user WHERE user = %s ORDER BY host <> '%%', host", (settings.user,))
        found = cur.fetchone()
        if found is None:
            return None
        user, host = settings.user, str(found[0])
    account = spelled((user, host))
    grants = _grants(cur, account)
    if grants.roles and settings.flavour == "mysql":
        grants = _grants(cur, f"{account} USING {', '.join(grants.roles)}")
    elif grants.roles:
        for role in grants.roles:
            grants.add(_grants(cur, role))
    return Role((user, host), grants)


def _grants(cur: Cursor, account: str) -> Grants:
    cur.execute(f"SHOW GRANTS FOR {account}")
    return Grants(line for (line,) in cur.fetchall())


def _cascades(cur: Cursor, tables: Sequence[CatalogueTable]) -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    wanted = {(t.schema_name, t.table_name) for t in tables}
    if version_of(cur.connection).flavour == "mysql":
        cur.execute(_CASCADES)
        for schema, table, name in cur.fetchall():
            if (schema, table) in wanted:
                found[schema, table] = (*found.get((schema, table), ()), name)
        return found
    # MariaDB's list is only for those who may change the table.
    for table in tables:
        try:
            cur.execute(f"SHOW CREATE TABLE {identifier(table.schema_name, table.table_name)}")
        except pymysql.Error as error:
            if error.args[0] not in _LACKS_PRIVILEGE:
                raise
            continue
        if names := _CASCADE.findall(cur.fetchone()[1]):
            found[table.schema_name, table.table_name] = tuple(name.replace("``", "`") for name in names)
    return found


def cascades_are_logged(server: Server) -> bool:
    """True if the server carries out foreign keys where the log is written, as MySQL does since 9.6."""
    return server.version.flavour == "mysql" and server.version >= _CASCADES_LOGGED and not server.on(
        "innodb_native_foreign_keys"
    )


def _watermarks(cur: Cursor, settings: MysqlSettings) -> Watermarks | None:
    found = catalogue.table_by_name(cur, settings.watermark_schema, WATERMARK_TABLE)
    if found is None:
        return None
    well_formed = found.engine == "InnoDB" and not found.prefix_key and _as_made(found.schema)
    rows = None
    if well_formed:
        try:
            cur.execute(f"SELECT id FROM {watermark_table(settings)}")
            rows = frozenset(row[0] for row in cur.fetchall())
        except pymysql.Error as error:
            if error.args[0] not in _LACKS_PRIVILEGE:
                raise
    return Watermarks(well_formed, rows)


def _as_made(schema: TableSchema) -> bool:
    said = [(c.name, c.type.partition(" character set ")[0], c.key) for c in schema.columns]
    return said == [("id", "int", 1), ("value", "varchar(36)", None)]


def retention_seconds(variables: Mapping[str, str]) -> float | None:
    """After how long the server removes log by itself; None if it never does."""
    seconds = float(variables.get("binlog_expire_logs_seconds", 0))
    seconds = seconds or 86_400 * float(variables.get("expire_logs_days", 0))
    return None if variables.get("binlog_expire_logs_auto_purge") == "OFF" or not seconds else seconds
