"""Reads the facts of ``catalog_facts``, in a handful of queries.

Place: at the beginning of ``preflight`` and ``init``. Privileges are always those of the capture role, whichever user
is connected; the role itself sees no table on which it has no privilege.
"""

from __future__ import annotations

import pymysql
from pymysql.cursors import Cursor

from dblake.base.core.names import TableFilter
from dblake.base.core.schema import TableSchema
from dblake.ingest.source.mysql import catalog, log_retention
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts, Role, Server, Watermarks
from dblake.ingest.source.mysql.connection import ServerVersion, version_of
from dblake.ingest.source.mysql.driver_errors import lacks_privilege
from dblake.ingest.source.mysql.foreign_keys import read_cascades
from dblake.ingest.source.mysql.grants import Grants
from dblake.ingest.source.mysql.replica import read_replication
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.statements import quote_account, watermark_table
from dblake.ingest.source.mysql.watermarks import WATERMARK_TABLE

_VARIABLES = (
    "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_order_commits",
    "binlog_row_value_options", "sync_binlog", "innodb_flush_log_at_trx_commit",
    "server_id", "read_only", "gtid_mode", "log_slave_updates", "log_replica_updates", "replica_preserve_commit_order",
    "slave_preserve_commit_order", "replica_parallel_workers", "slave_parallel_workers", "innodb_native_foreign_keys",
    *log_retention.VARIABLES,
)
_SHOW_BINARY_LOG = ServerVersion("mysql", (8, 2, 0))


def read_facts(cur: Cursor, settings: MysqlSettings) -> CatalogFacts:
    """Read all facts over one connection, the capture role's or an administrator's."""
    every = catalog.captured_tables(cur, TableFilter(["*.*"]), settings.watermark_schema)
    captured = tuple(t for t in every if settings.table_filter(t.schema_name, t.table_name))
    cur.execute(
        "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN %s ORDER BY SCHEMA_NAME",
        ([*catalog.SYSTEM_SCHEMAS, settings.watermark_schema],),
    )
    schemas = tuple(str(name) for (name,) in cur.fetchall() if settings.table_filter.takes_all_of(str(name)))
    return CatalogFacts(
        server=_read_server(cur),
        role=_read_role(cur, settings),
        tables=captured,
        names=tuple((t.schema_name, t.table_name) for t in every),
        cascades=read_cascades(cur, captured),
        watermarks=_read_watermarks(cur, settings),
        schemas=schemas,
    )


def _read_server(cur: Cursor) -> Server:
    version = version_of(cur.connection)
    cur.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (_VARIABLES,))
    variables = dict(cur.fetchall())
    logged_only: str = ""
    not_logged: str = ""
    try:
        cur.execute("SHOW BINARY LOG STATUS" if version >= _SHOW_BINARY_LOG else "SHOW MASTER STATUS")
        if status := cur.fetchone():
            logged_only, not_logged = status[2], status[3]
    except pymysql.Error as error:
        if not lacks_privilege(error):
            raise
    retention = log_retention.read_retention(cur, variables)
    return Server(
        version, variables, _is_replica(cur, version), _split_names(logged_only), _split_names(not_logged), retention
    )


def _split_names(listed: str) -> frozenset[str]:
    return frozenset(listed.split(",")) - {""}


def _is_replica(cur: Cursor, version: ServerVersion) -> bool:
    if version.flavour == "mariadb":
        cur.execute("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        status = cur.fetchone()
        return status is not None and status[1] != "0"
    try:
        return bool(read_replication(cur))
    except pymysql.Error as error:
        if not lacks_privilege(error):
            raise
        return False


def _read_role(cur: Cursor, settings: MysqlSettings) -> Role | None:
    cur.execute("SELECT CURRENT_USER()")
    user, _, host = str(cur.fetchone()[0]).rpartition("@")
    if user != settings.user:
        cur.execute("SELECT host FROM mysql.user WHERE user = %s ORDER BY host <> '%%', host", (settings.user,))
        row = cur.fetchone()
        if row is None:
            return None
        user, host = settings.user, str(row[0])
    account = quote_account((user, host))
    grants = _read_grants(cur, account)
    if grants.roles and settings.flavour == "mysql":
        grants = _read_grants(cur, f"{account} USING {', '.join(grants.roles)}")
    elif grants.roles:
        for role in grants.roles:
            grants.add(_read_grants(cur, role))
    return Role((user, host), grants)


def _read_grants(cur: Cursor, account: str) -> Grants:
    cur.execute(f"SHOW GRANTS FOR {account}")
    return Grants(line for (line,) in cur.fetchall())


def _read_watermarks(cur: Cursor, settings: MysqlSettings) -> Watermarks | None:
    table = catalog.table_by_name(cur, settings.watermark_schema, WATERMARK_TABLE)
    if table is None:
        return None
    is_well_formed = table.engine == "InnoDB" and not table.prefix_key and _has_watermark_columns(table.schema)
    rows = None
    if is_well_formed:
        try:
            cur.execute(f"SELECT id FROM {watermark_table(settings)}")
            rows = frozenset(row[0] for row in cur.fetchall())
        except pymysql.Error as error:
            if not lacks_privilege(error):
                raise
    return Watermarks(is_well_formed, rows)


def _has_watermark_columns(schema: TableSchema) -> bool:
    columns = [(c.name, c.type.partition(" character set ")[0], c.key) for c in schema.columns]
    return columns == [("id", "int", 1), ("value", "varchar(36)", None)]
