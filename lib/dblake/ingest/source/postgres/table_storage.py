"""Reads where tables keep rows that their log does not have under the table's name.

Place: part of the facts of ``preflight``. A dump of such a table finds no rows, or rows that no event will change.
State and dump would agree on wrong rows. So preflight rejects these tables by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2.extensions import cursor

from dblake.ingest.source.postgres import catalog

# TimescaleDB keeps rows in children in a schema of its own, Citus in shards on other servers: its trigger shows it.
_FOREIGN = f"""
SELECT c.oid, CASE
    WHEN part.relkind = 'f' THEN format('partition %%s is a foreign table', part.oid::regclass)
    WHEN part.relpersistence <> 'p' THEN format('partition %%s is unlogged', part.oid::regclass)
    ELSE format('%%s has the access method %%s', part.oid::regclass, am.amname) END
FROM pg_class c CROSS JOIN LATERAL ({catalog.partition_tree("c.oid")}) tree(relid)
JOIN pg_class part ON part.oid = tree.relid LEFT JOIN pg_am am ON am.oid = part.relam
WHERE c.oid = ANY(%(oids)s::oid[]) AND (part.relkind = 'f' OR part.relpersistence <> 'p' OR am.amname <> 'heap')
UNION ALL
SELECT i.inhparent, format('extension %%s keeps its rows in %%s', e.extname, child.oid::regclass)
FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid AND NOT child.relispartition
JOIN pg_depend d ON d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND (
    (d.classid = 'pg_class'::regclass AND d.objid = child.oid)
    OR (d.classid = 'pg_namespace'::regclass AND d.objid = child.relnamespace))
JOIN pg_extension e ON e.oid = d.refobjid
WHERE i.inhparent = ANY(%(oids)s::oid[])
UNION ALL
SELECT t.tgrelid, 'Citus keeps its rows in shards' FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE p.proname = 'citus_truncate_trigger' AND t.tgrelid = ANY(%(oids)s::oid[])
ORDER BY 1, 2
"""


def read_foreign_storage(cur: cursor, oids: Sequence[int]) -> dict[int, str]:
    """Return, by table oid, the first reason why the log lacks changes of a table's rows under its name."""
    cur.execute(_FOREIGN, {"oids": list(oids)})
    reasons: dict[int, str] = {}
    for oid, reason in cur.fetchall():
        reasons.setdefault(oid, reason)
    return reasons
