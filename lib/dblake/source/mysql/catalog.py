"""Schemas as the server's catalogue has them: which columns a table logs, of which types, with which key.

The columns are those of the binlog's TABLE_MAP, in its order: invisible and generated ones are among them, virtual ones
too (tried on MariaDB 10.11 and MySQL 9.7). Chunks select exactly these, so that both paths have one schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pymysql.cursors import Cursor

from dblake.core.errors import Unsupported
from dblake.core.names import TableFilter, qualified, split_qualified
from dblake.core.schema import Column, TableSchema
from dblake.formats.mysql_types import from_catalogue
from dblake.source.mysql.connection import version_of
from dblake.source.mysql.sql_literals import identifier

SYSTEM_SCHEMAS = ("mysql", "information_schema", "performance_schema", "sys", "ndbinfo")

# Three plain queries: MariaDB would open every table anew for each row of a join of these.
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
class CatalogueTable:
    """A table's schema and what preflight and chunks must know beside it.

    ``unsupported`` has a reason for each column that dblake does not decode; its type is then the server's spelling.
    ``prefix_key``: the key is made of the beginnings of its columns only. ``versioned``: MariaDB keeps old rows in it.
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
        """Key columns of type float, whose values no text the server accepts tells apart."""
        return tuple(c.name for c in self.schema.columns if c.key and c.type == "float")


def captured_tables(cur: Cursor, wanted: TableFilter, watermark_schema: str) -> list[CatalogueTable]:
    """All tables the patterns take in, by name, those with unsupported columns included."""
    found = _assemble(cur, _ALL, [[*SYSTEM_SCHEMAS, watermark_schema]])
    return sorted((t for t in found if wanted(t.schema_name, t.table_name)), key=lambda t: t.schema.table)


def table_by_name(cur: Cursor, schema: str, table: str) -> CatalogueTable | None:
    """One table as it is now, or None if there is none. Raises Unsupported for a column not decoded."""
    # The catalogue compares without regard to case where table names have it.
    found = [t for t in _assemble(cur, _ONE, [schema, table]) if (t.schema_name, t.table_name) == (schema, table)]
    if not found:
        return None
    if found[0].unsupported or found[0].versioned:
        _refuse(found[0])
    return found[0]


def rows_about(cur: Cursor, schema: str, table: str) -> int:
    """How many rows the server thinks a table has now; its catalogue's own number may be a day old."""
    cur.execute(f"EXPLAIN FORMAT=TRADITIONAL SELECT * FROM {identifier(schema, table)}")
    row = cur.fetchone()
    return int(row[[column[0] for column in cur.description].index("rows")] or 0)


def _refuse(table: CatalogueTable) -> NoReturn:
    reasons = [*table.unsupported, *(["it is system-versioned"] if table.versioned else [])]
    raise Unsupported(
        f"table {table.schema.table}: {'; '.join(reasons)}",
        next_step="take the table out of source.tables; preflight names all that has to go",
    )


def _assemble(cur: Cursor, which: str, parameters: Sequence[Any]) -> list[CatalogueTable]:
    mariadb = version_of(cur.connection).flavour == "mariadb"
    cur.execute(_TABLES.format(which=which), parameters)
    tables = {(row[0], row[1]): row[2:] for row in cur.fetchall() if row[2] in _KINDS}
    cur.execute(_COLUMNS.format(which=which), parameters)
    columns: dict[_Name, list[tuple[Any, ...]]] = {}
    for schema, name, *column in cur.fetchall():
        columns.setdefault((schema, name), []).append(tuple(column))
    cur.execute(_KEYS.format(which=which), parameters)
    keys: dict[_Name, dict[str, tuple[int, int | None]]] = {}
    for schema, name, column, place, part in cur.fetchall():
        keys.setdefault((schema, name), {})[column] = place, part
    # A table made or dropped between the queries is in some of them only.
    return [
        _table(name, kind, engine, columns[name], keys.get(name, {}), mariadb)
        for name, (kind, engine) in tables.items() if name in columns
    ]


def _table(
    name: _Name, kind: str, engine: str | None, columns: list[tuple[Any, ...]],
    keys: dict[str, tuple[int, int | None]], mariadb: bool,
) -> CatalogueTable:
    unsupported, typed = [], []
    for column, said, charset, nullable in columns:
        try:
            spelling = from_catalogue(said, charset, mariadb=mariadb)
        except Unsupported as error:
            spelling = said
            unsupported.append(f"column {column}: {error.what}")
        typed.append(Column(column, spelling, nullable == "YES", keys[column][0] if column in keys else None))
    return CatalogueTable(
        schema_name=name[0], table_name=name[1], schema=TableSchema(qualified(*name), tuple(typed)),
        engine=engine or "", unsupported=tuple(unsupported),
        prefix_key=any(part is not None for _, part in keys.values()), versioned=kind == "SYSTEM VERSIONED",
    )


def row_estimates(cur: Cursor, tables: Sequence[str]) -> dict[str, int]:
    """What the storage engine guesses."""
    if not tables:
        return {}
    names = tuple(split_qualified(table) for table in tables)
    cur.execute(
        "SELECT table_schema, table_name, table_rows FROM information_schema.tables"
        " WHERE (table_schema, table_name) IN %s AND table_rows IS NOT NULL", (names,),
    )
    return {qualified(str(schema), str(name)): int(rows) for schema, name, rows in cur.fetchall()}
