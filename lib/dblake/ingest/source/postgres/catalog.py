"""Reads table schemas from PostgreSQL's catalog: columns, types, key.

Guarantee: the columns are those that pgoutput sends, in its order, without dropped and generated ones. Chunks select
exactly these, so that log and chunks have one schema. One query reads all captured tables, or one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import cursor

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import TableFilter, qualified
from dblake.base.core.schema import Column, TableSchema

# A domain has its base type's values and is named as that; a domain may be over another one.
_TYPE_NAME = "format_type(coalesce(base.type, {type}), coalesce(base.modifier, {modifier}))"
_BASE = """
LEFT JOIN LATERAL (
  WITH RECURSIVE below(type, modifier) AS (
    SELECT typbasetype, typtypmod FROM pg_type WHERE oid = {type} AND typtype = 'd'
    UNION ALL
    SELECT t.typbasetype, t.typtypmod FROM below JOIN pg_type t ON t.oid = below.type AND t.typtype = 'd'
  )
  SELECT below.* FROM below JOIN pg_type t ON t.oid = below.type AND t.typtype <> 'd'
) base ON true
"""
# Without pg_partition_tree, which waits for locks on the table and its partitions. A partition that is being detached
# no longer counts; PostgreSQL 13 has no such column.
_PARTITION_TREE = """
WITH RECURSIVE tree(oid) AS (
  SELECT {root}::oid UNION ALL
  SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
  JOIN pg_class child ON child.oid = i.inhrelid AND child.relispartition
  WHERE NOT coalesce((to_jsonb(i) ->> 'inhdetachpending')::boolean, false)
) SELECT oid FROM tree
"""


def partition_tree(root: str) -> str:
    """Return a query of the oids of a table and all its partitions, which waits for no lock; ``root`` is SQL."""
    return _PARTITION_TREE.format(root=root)


_COLUMNS = f"""
SELECT c.oid, n.nspname, c.relname, a.attname, a.atttypid, a.atttypmod,
       {_TYPE_NAME.format(type="a.atttypid", modifier="a.atttypmod")}, NOT a.attnotnull,
       array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum), c.relkind,
       EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = c.oid AND g.attgenerated <> ''
               AND g.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])),
       format_type(a.atttypid, a.atttypmod), {{files}},
       EXISTS (SELECT FROM pg_type o WHERE o.oid = coalesce(base.type, a.atttypid) AND o.typtype = 'b'
               AND o.typcategory <> 'A' AND o.typnamespace <> 'pg_catalog'::regnamespace),
       coalesce(a.attnum = ANY(i.indkey), false) AND EXISTS (
         SELECT FROM pg_index own WHERE own.indexrelid IN ({partition_tree('i.indexrelid')})
         AND NOT (own.indimmediate AND own.indisvalid))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
{_BASE.format(type="a.atttypid")}
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p') AND {{which}}
ORDER BY c.oid, a.attnum
"""
_NAMES = (
    f"SELECT coalesce({_TYPE_NAME.format(type='t', modifier='m')}, 'unknown')"
    f" FROM unnest(%s::oid[], %s::int4[]) WITH ORDINALITY AS x(t, m, n) {_BASE.format(type='x.t')} ORDER BY n"
)
LOOSE_KEY = (
    "the primary key is deferrable, or not valid in all partitions: two rows may share a key for a time, and the log"
    " does not show which of them changes"
)
_ALL = """NOT c.relispartition AND c.relpersistence = 'p' AND n.nspname !~ '^pg_'
AND n.nspname <> 'information_schema' AND n.nspname <> %(watermark_schema)s"""

_FILES = f"ARRAY(SELECT relfilenode FROM pg_class WHERE oid IN ({partition_tree('%(oid)s')}) ORDER BY oid)"


@dataclass(frozen=True)
class CatalogTable:
    """A table's schema, with the names and type numbers by which the log identifies it."""

    oid: int
    schema_name: str
    table_name: str
    schema: TableSchema
    types: tuple[tuple[int, int], ...]
    """``(type oid, type modifier)`` of each column."""
    is_partitioned: bool
    """True for the root of partitions, which hold its rows."""
    has_generated_key: bool
    """True if the primary key contains a generated column, so that its other columns do not identify a row."""
    has_loose_key: bool
    """True if two rows may share a primary key for a time: it is deferrable, or not valid in all partitions."""
    declared: tuple[str, ...]
    """The declared type of each column: a domain by its own name."""
    extension_ordered: tuple[str, ...]
    """Columns of the primary key whose type comes from an extension, with an order of its own."""
    files: tuple[int, ...] = ()
    """The files that hold the rows, partitions' included; a rewrite changes them. Set by ``table_by_oid`` only."""


def captured_tables(cur: cursor, table_filter: TableFilter, watermark_schema: str) -> list[CatalogTable]:
    """Return all tables that the filter includes, ordered by name."""
    cur.execute(_COLUMNS.format(files="NULL", which=_ALL), {"watermark_schema": watermark_schema})
    tables = _assemble(cur.fetchall())
    return sorted((t for t in tables if table_filter(t.schema_name, t.table_name)), key=lambda t: t.schema.table)


def table_by_oid(cur: cursor, oid: int, *, first: str = "") -> CatalogTable | None:
    """Return one table as it is now, with its files; None if it does not exist.

    ``first`` is a statement that the server executes before, in the same round trip.
    """
    cur.execute(first + _COLUMNS.format(files=_FILES, which="c.oid = %(oid)s"), {"oid": oid})
    tables = _assemble(cur.fetchall())
    return tables[0] if tables else None


def require_usable_key(table: CatalogTable) -> None:
    """Raise Unsupported if the log does not identify rows by the primary key."""
    if table.has_loose_key:
        raise Unsupported(
            f"table {table.schema.table}: {LOOSE_KEY}", next_step="run preflight, which prints how to replace it"
        )
    if table.has_generated_key:
        raise Unsupported(
            f"table {table.schema.table}: its primary key has a generated column, which the log omits, so rows"
            " cannot be identified",
            next_step="remove it from source.tables",
        )


def type_names(cur: cursor, types: list[tuple[int, int]]) -> list[str]:
    """Return PostgreSQL's names of types given as ``(oid, modifier)``; a domain has its base type's name."""
    cur.execute(_NAMES, ([t for t, _ in types], [m for _, m in types]))
    return [row[0] for row in cur.fetchall()]


def _assemble(rows: list[tuple[Any, ...]]) -> list[CatalogTable]:
    by_oid: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_oid.setdefault(row[0], []).append(row)
    return [
        CatalogTable(
            oid=oid,
            schema_name=group[0][1],
            table_name=group[0][2],
            schema=TableSchema(
                qualified(group[0][1], group[0][2]),
                # A slice of an int2vector starts at 0 and array_position keeps that; keys count from 1.
                tuple(Column(r[3], r[6], r[7], None if r[8] is None else r[8] + 1) for r in group),
            ),
            types=tuple((r[4], r[5]) for r in group),
            is_partitioned=group[0][9] == "p",
            has_generated_key=group[0][10],
            has_loose_key=any(r[14] for r in group),
            declared=tuple(r[11] for r in group),
            extension_ordered=tuple(r[3] for r in group if r[8] is not None and r[13]),
            files=tuple(group[0][12] or ()),
        )
        for oid, group in by_oid.items()
    ]
