"""Foreign keys that change rows: which of a table's cascade, and whether the server logs what they do.

Place: part of the facts that ``catalog_queries`` reads. Reporting what the log lacks is left to
``preflight_tables``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from pymysql.cursors import Cursor

from dblake.base.core.errors import TableLocked, TableUnreadable
from dblake.ingest.source.mysql.catalog import CatalogTable
from dblake.ingest.source.mysql.catalog_facts import Server
from dblake.ingest.source.mysql.connection import ServerVersion, version_of
from dblake.ingest.source.mysql.driver_errors import table_errors
from dblake.ingest.source.mysql.sql_literals import identifier

_CASCADES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
"""
_CASCADE = re.compile(
    r"^  CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.MULTILINE
)
_CASCADES_LOGGED = ServerVersion("mysql", (9, 6, 0))


def read_cascades(cur: Cursor, tables: Sequence[CatalogTable]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the names of the foreign keys of some tables that change rows of their own table, by table."""
    cascades: dict[tuple[str, str], tuple[str, ...]] = {}
    captured = {(t.schema_name, t.table_name) for t in tables}
    if version_of(cur.connection).flavour == "mysql":
        cur.execute(_CASCADES)
        for schema, table, name in cur.fetchall():
            if (schema, table) in captured:
                cascades[schema, table] = (*cascades.get((schema, table), ()), name)
        return cascades
    # MariaDB shows its list only to users who may change the table.
    for table in tables:
        # The table may be dropped since it was listed, damaged, or locked.
        with suppress(TableUnreadable, TableLocked), table_errors(table.schema.table):
            cur.execute(f"SHOW CREATE TABLE {identifier(table.schema_name, table.table_name)}")
            if names := _CASCADE.findall(cur.fetchone()[1]):
                cascades[table.schema_name, table.table_name] = tuple(name.replace("``", "`") for name in names)
    return cascades


def cascades_are_logged(server: Server) -> bool:
    """Return True if the server executes foreign keys above the log, as MySQL does since 9.6."""
    return server.version.flavour == "mysql" and server.version >= _CASCADES_LOGGED and not server.is_on(
        "innodb_native_foreign_keys"
    )
