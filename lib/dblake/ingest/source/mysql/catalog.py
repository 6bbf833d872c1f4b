"""Reads table schemas from the server's catalog: the columns that the log has, with their types and key.

The columns are those of the binlog's TABLE_MAP, in its order, including invisible, generated and virtual ones (tried on
MariaDB 10.11 and MySQL 9.7). Chunks select exactly these, so that both paths have one schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pymysql.cursors import Cursor

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import TableFilter, qualified, split_qualified
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.mysql.connection import version_of
from dblake.ingest.source.mysql.sql_literals import identifier
from dblake.payloads.formats.mysql_types import type_from_catalog

SYSTEM_SCHEMAS = ("mysql", "information_schema", "performance_schema", "sys", "ndbinfo")

# Three plain queries: MariaDB would open every table again for each row of a join of these.
_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE {which}"
_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE
FROM information_schema.COLUMNS WHERE {which} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_KEYS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SEQ_IN_INDEX, SUB_PART
FROM information_schema.STATISTICS WHERE INDEX_NAME = 'PRIMARY' AND {which}
"""
_ALL = "TABLE_SCHEMA NOT IN %s"
_ONE = "TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_KINDS = ("BASE TABLE", "SYSTEM VERSIONED")

_Name = tuple[str, str]


@dataclass(frozen=True)
class CatalogTable:
    """A table's schema, with the facts that preflight and chunk reads need.

    ``unsupported`` has a reason for each column that dblake does not decode; its type is then the server's spelling.
    ``prefix_key`` is true if the key consists of prefixes of its columns, ``versioned`` if the table keeps old rows.
    """

    schema_name: str
    table_name: str
    schema: TableSchema
    engine: str
    unsupported: tuple[str, ...] = ()
    prefix_key: bool = False
    versioned: bool = False

    @property
    def float_keys(self) -> tuple[str, ...]:
        """Key columns of type float: no text that the server accepts is equal to their values."""
        return tuple(c.name for c in self.schema.columns if c.key and c.type == "float")


def captured_tables(cur: Cursor, table_filter: TableFilter, watermark_schema: str) -> list[CatalogTable]:
    """Return all tables that match the patterns, by name, including those with unsupported columns."""
    tables = _assemble(cur, _ALL, [[*SYSTEM_SCHEMAS, watermark_schema]])
    return sorted((t for t in tables if table_filter(t.schema_name, t.table_name)), key=lambda t: t.schema.table)


def table_by_name(cur: Cursor, schema: str, table: str) -> CatalogTable | None:
    """Return one table as it is now, None if there is none. Raises Unsupported for a column that is not decoded."""
    # The catalog compares names without regard to case where the server does.
    tables = [t for t in _assemble(cur, _ONE, [schema, table]) if (t.schema_name, t.table_name) == (schema, table)]
    if not tables:
        return None
    if tables[0].unsupported or tables[0].versioned:
        _reject(tables[0])
    return tables[0]


def estimate_rows(cur: Cursor, schema: str, table: str) -> int:
    """Return the optimizer's estimate of a table's rows; the number in the catalog may be a day old."""
    cur.execute(f"EXPLAIN FORMAT=TRADITIONAL SELECT * FROM {identifier(schema, table)}")
    row = cur.fetchone()
    return int(row[[column[0] for column in cur.description].index("rows")] or 0)


def row_estimates(cur: Cursor, tables: Sequence[str]) -> dict[str, int]:
    """Return the storage engine's row estimates of the tables for which it has one."""
    if not tables:
        return {}
    names = tuple(split_qualified(table) for table in tables)
    cur.execute(
        "SELECT table_schema, table_name, table_rows FROM information_schema.tables"
        " WHERE (table_schema, table_name) IN %s AND table_rows IS NOT NULL", (names,),
    )
    return {qualified(str(schema), str(name)): int(rows) for schema, name, rows in cur.fetchall()}


def _reject(table: CatalogTable) -> NoReturn:
    reasons = [*table.unsupported, *(["it is system-versioned"] if table.versioned else [])]
    raise Unsupported(
        f"table {table.schema.table}: {'; '.join(reasons)}",
        next_step="take the table out of source.tables; preflight names all tables to take out",
    )


def _assemble(cur: Cursor, which: str, parameters: Sequence[Any]) -> list[CatalogTable]:
    is_mariadb = version_of(cur.connection).flavour == "mariadb"
    cur.execute(_TABLES.format(which=which), parameters)
    tables = {(row[0], row[1]): row[2:] for row in cur.fetchall() if row[2] in _KINDS}
    cur.execute(_COLUMNS.format(which=which), parameters)
    columns: dict[_Name, list[tuple[Any, ...]]] = {}
    for schema, name, *column in cur.fetchall():
        columns.setdefault((schema, name), []).append(tuple(column))
    cur.execute(_KEYS.format(which=which), parameters)
    keys: dict[_Name, dict[str, tuple[int, int | None]]] = {}
    for schema, name, column, number, prefix in cur.fetchall():
        keys.setdefault((schema, name), {})[column] = number, prefix
    # A table created or dropped between the queries is in some of them only.
    return [
        _table(name, kind, engine, columns[name], keys.get(name, {}), is_mariadb)
        for name, (kind, engine) in tables.items() if name in columns
    ]


def _table(
    name: _Name, kind: str, engine: str | None, columns: list[tuple[Any, ...]],
    keys: dict[str, tuple[int, int | None]], is_mariadb: bool,
) -> CatalogTable:
    unsupported, typed = [], []
    for column, column_type, charset, nullable in columns:
        try:
            spelling = type_from_catalog(column_type, charset, mariadb=is_mariadb)
        except Unsupported as error:
            spelling = column_type
            unsupported.append(f"column {column}: {error.what}")
        typed.append(Column(column, spelling, nullable == "YES", keys[column][0] if column in keys else None))
    return CatalogTable(
        schema_name=name[0], table_name=name[1], schema=TableSchema(qualified(*name), tuple(typed)),
        engine=engine or "", unsupported=tuple(unsupported),
        prefix_key=any(prefix is not None for _, prefix in keys.values()), versioned=kind == "SYSTEM VERSIONED",
    )
