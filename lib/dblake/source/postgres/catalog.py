"""Schemas as PostgreSQL's catalogue has them: which columns a table sends, of which types, with which key.

One query answers for all captured tables, or for one. The columns are those pgoutput sends, in its order: no dropped
and no generated ones. Chunks select exactly these, so that both paths have one schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import cursor

from dblake.core.errors import Unsupported
from dblake.core.names import TableFilter, qualified
from dblake.core.schema import Column, TableSchema

# The values of a domain are those of its base type, and it is spelled as that; a domain may be over another one.
_SPELLED = "format_type(coalesce(base.type, {type}), coalesce(base.modifier, {modifier}))"
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
_COLUMNS = f"""
SELECT c.oid, n.nspname, c.relname, a.attname, a.atttypid, a.atttypmod,
       {_SPELLED.format(type="a.atttypid", modifier="a.atttypmod")}, NOT a.attnotnull,
       array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum), c.relkind,
       EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = c.oid AND g.attgenerated <> ''
               AND g.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])),
       format_type(a.atttypid, a.atttypmod), {{files}},
       EXISTS (SELECT FROM pg_type o WHERE o.oid = coalesce(base.type, a.atttypid) AND o.typtype = 'b'
               AND o.typcategory <> 'A' AND o.typnamespace <> 'pg_catalog'::regnamespace)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
{_BASE.format(type="a.atttypid")}
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p') AND {{which}}
ORDER BY c.oid, a.attnum
"""
_NAMES = (
    f"SELECT coalesce({_SPELLED.format(type='t', modifier='m')}, 'unknown')"
    f" FROM unnest(%s::oid[], %s::int4[]) WITH ORDINALITY AS x(t, m, n) {_BASE.format(type='x.t')} ORDER BY n"
)
_FILES = """ARRAY(SELECT relfilenode FROM pg_class
WHERE oid = %(oid)s OR oid IN (SELECT relid FROM pg_partition_tree(%(oid)s)) ORDER BY oid)"""
_ALL = """NOT c.relispartition AND c.relpersistence = 'p' AND n.nspname !~ '^pg_'
AND n.nspname <> 'information_schema' AND n.nspname <> %(watermark_schema)s"""


@dataclass(frozen=True)
class CatalogueTable:
    """A table's schema, with the names and type numbers the log speaks of it by."""

    oid: int
    schema_name: str
    table_name: str
    schema: TableSchema
    types: tuple[tuple[int, int], ...]
    """``(type oid, type modifier)`` of each column."""
    partitioned: bool
    """True for the root of partitions, whose rows are theirs; a plain table has rows of its own only."""
    key_generated: bool
    """True if the primary key has generated columns: what is left of it without them identifies no row."""
    declared: tuple[str, ...]
    """The type of each column as it was declared: a domain by its own name."""
    own_order: tuple[str, ...]
    """Columns of the primary key whose type came with an extension, and with it an order of its own."""
    files: tuple[int, ...] = ()
    """The files that hold the rows, those of partitions included: others once it has been rewritten. Of one table
    asked for by number only."""


def captured_tables(cur: cursor, wanted: TableFilter, watermark_schema: str) -> list[CatalogueTable]:
    """All tables the patterns take in, by name."""
    cur.execute(_COLUMNS.format(files="NULL", which=_ALL), {"watermark_schema": watermark_schema})
    tables = _assemble(cur.fetchall())
    return sorted((t for t in tables if wanted(t.schema_name, t.table_name)), key=lambda t: t.schema.table)


def table_by_oid(cur: cursor, oid: int, *, first: str = "") -> CatalogueTable | None:
    """One table as it is now, with its files, or None if it is gone.

    ``first`` is a statement that the server is to carry out before, on the same way to it.
    """
    cur.execute(first + _COLUMNS.format(files=_FILES, which="c.oid = %(oid)s"), {"oid": oid})
    tables = _assemble(cur.fetchall())
    return tables[0] if tables else None


def require_whole_key(table: CatalogueTable) -> None:
    """Raises Unsupported if the log does not hold all of the primary key."""
    if table.key_generated:
        raise Unsupported(
            f"table {table.schema.table}: its primary key has a generated column, which the log leaves out, so rows"
            " cannot be identified",
            next_step="take it out of source.tables",
        )


def type_names(cur: cursor, types: list[tuple[int, int]]) -> list[str]:
    """How PostgreSQL spells types given by number."""
    cur.execute(_NAMES, ([t for t, _ in types], [m for _, m in types]))
    return [row[0] for row in cur.fetchall()]


def _assemble(rows: list[tuple[Any, ...]]) -> list[CatalogueTable]:
    by_oid: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_oid.setdefault(row[0], []).append(row)
    return [
        CatalogueTable(
            oid=oid,
            schema_name=group[0][1],
            table_name=group[0][2],
            schema=TableSchema(
                qualified(group[0][1], group[0][2]),
                # A slice of an int2vector starts at 0 and array_position keeps that; keys count from 1.
                tuple(Column(r[3], r[6], r[7], None if r[8] is None else r[8] + 1) for r in group),
            ),
            types=tuple((r[4], r[5]) for r in group),
            partitioned=group[0][9] == "p",
            key_generated=group[0][10],
            declared=tuple(r[11] for r in group),
            own_order=tuple(r[3] for r in group if r[8] is not None and r[13]),
            files=tuple(group[0][12] or ()),
        )
        for oid, group in by_oid.items()
    ]
