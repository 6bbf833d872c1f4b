"""Finds captured tables whose key order may have changed with a collation's library.

Place: part of ``preflight``. An update of the operating system may sort texts otherwise than the indexes on them do.
Chunks are read in key order, so a dump could miss rows until the indexes are rebuilt. The log is not affected.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.base.core.names import abbreviated
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts, ChangedCollation
from dblake.ingest.source.postgres.finding import Finding

_DATABASE_VERSIONS = 150000
"""The first version that records the version of a database's collation."""
_CHANGED = """
SELECT DISTINCT i.indrelid, co.collprovider = 'd', n.nspname, co.collname, v.recorded, coalesce(v.actual, 'none')
FROM pg_index i CROSS JOIN LATERAL unnest(i.indcollation) AS used(oid)
JOIN pg_collation co ON co.oid = used.oid JOIN pg_namespace n ON n.oid = co.collnamespace
JOIN pg_database d ON d.datname = current_database()
CROSS JOIN LATERAL (
  SELECT CASE WHEN co.collprovider = 'd' THEN {recorded} ELSE co.collversion END AS recorded,
         CASE WHEN co.collprovider = 'd' THEN {actual} ELSE pg_collation_actual_version(co.oid) END AS actual
) v
WHERE i.indisprimary AND i.indrelid = ANY(%s::oid[]) AND v.recorded IS NOT NULL AND v.recorded IS DISTINCT FROM v.actual
ORDER BY n.nspname, co.collname, i.indrelid
"""


def read_changed_collations(cur: cursor, version: int, oids: Sequence[int]) -> tuple[ChangedCollation, ...]:
    """Return the collations of the tables' primary keys whose library has another version than their indexes."""
    has_versions = version >= _DATABASE_VERSIONS
    cur.execute(_CHANGED.format(
        recorded="d.datcollversion" if has_versions else "NULL",
        actual="pg_database_collation_actual_version(d.oid)" if has_versions else "NULL",
    ), (list(oids),))
    return tuple(ChangedCollation(*row) for row in cur.fetchall())


def check_collations(facts: CatalogFacts) -> Finding:
    """Return the finding about tables whose key uses a collation with another version."""
    tables = {table.oid: table for table in facts.tables}
    affected = [(tables[each.table], each) for each in facts.collations if each.table in tables]
    names = {
        each: f"{'the database' if each.is_default else each.name} ({each.recorded}, now {each.actual})"
        for _, each in affected
    }
    reason = "the order of its key may have changed: its collation's library has another version"
    # A collation that several tables use is refreshed once, after all their indexes.
    rebuilt = [sql.SQL("REINDEX TABLE {}").format(sql.Identifier(t.schema, t.name)) for t, _ in affected]
    refreshed = {names[each]: _refresh(each, facts.server.database) for _, each in affected}
    return Finding(
        "collation_versions", ok=not affected,
        detail="a dump may miss rows, because the collation's library has another version than the key's index: "
        + abbreviated([f"{table.qualified} ({names[each]})" for table, each in affected]) if affected else "",
        fix=sql.SQL("\n").join(sql.SQL("{};").format(each) for each in (*rebuilt, *refreshed.values())),
        tables={table.qualified: f"collation_versions: {reason}" for table, _ in affected}, affects="dump",
    )


def _refresh(collation: ChangedCollation, database: str) -> sql.Composable:
    if collation.is_default:
        return sql.SQL("ALTER DATABASE {} REFRESH COLLATION VERSION").format(sql.Identifier(database))
    return sql.SQL("ALTER COLLATION {} REFRESH VERSION").format(sql.Identifier(collation.schema, collation.name))
