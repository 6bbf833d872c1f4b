"""Reads table fingerprints, which show changes of rows that PostgreSQL's log has no row events for.

Guarantee: all fingerprints are of one moment. They hold numbers of tables, partitions, columns, enum labels and files.
A column that was dropped and added again has another number, a rewritten table another file. Another file alone does
not prove a change: VACUUM FULL, CLUSTER and TRUNCATE create one, too. For a partition it must count, because its
TRUNCATE is not published as the root's. Comparing fingerprints is for ``capture.stale_detector``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from psycopg2.extensions import cursor

from dblake.base.core.source import ColumnFingerprint, TableFingerprint
from dblake.ingest.source.postgres import catalog
from dblake.ingest.source.postgres.settings import PostgresSettings

# A recreated table is neither published (pgoutput) nor granted until preflight --init has run again.
# Without pg_publication_tables, which waits for locks on the tables from PostgreSQL 16 on.
_PUBLISHED = """
SELECT c.oid, concat_ws('/', p.oid, p.xmin, {member}), r.oid IS NOT NULL
FROM pg_publication p JOIN pg_class c ON c.relkind IN ('r', 'p')
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid {schemas}
WHERE p.pubname = %(publication)s AND has_table_privilege(c.oid, 'SELECT')
AND (p.puballtables OR {member} IS NOT NULL)
"""
_SCHEMAS = "LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace"
_COLUMNS = """
SELECT a.attrelid, a.attname, a.attnum, a.xmin::text,
       NOT (a.atthasdef OR a.atthasmissing OR a.attidentity <> '' OR t.typtype = 'd')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ANY (%(oids)s) AND a.attnum > 0 AND NOT a.attisdropped
"""
# Enums and the types built from them are user-defined (oid 16384 and up); rows hold a label's number.
_LABELS = """
WITH RECURSIVE made_of(attrelid, attname, type) AS (
  SELECT attrelid, attname, atttypid FROM pg_attribute
  WHERE attrelid = ANY (%(oids)s) AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
  UNION
  SELECT m.attrelid, m.attname, part.type FROM made_of m CROSS JOIN LATERAL (
    SELECT unnest(ARRAY[typelem, typbasetype]) FROM pg_type WHERE oid = m.type
    UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
    WHERE t.oid = m.type AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL {ranges}
  ) part(type) WHERE part.type >= 16384
)
SELECT m.attrelid, m.attname, e.oid::text, e.enumlabel FROM made_of m JOIN pg_enum e ON e.enumtypid = m.type
"""
_RANGES = "SELECT rngsubtype FROM pg_range WHERE rngtypid = m.type"
_MULTIRANGES = "SELECT rngsubtype FROM pg_range WHERE m.type IN (rngtypid, rngmultitypid)"
# CREATE TABLE … PARTITION OF creates an empty partition in one transaction with its columns (the entry of a system
# column is never rewritten); an attached partition was a table before and brings rows. A file of another number than
# its partition replaced the first one: rows may have come and gone with that.
_PARTITIONS = f"""
SELECT c.oid, part.oid, part.relfilenode,
       i.xmin <> own.xmin OR part.relkind = 'r' AND part.relfilenode <> part.oid
FROM pg_class c
CROSS JOIN LATERAL ({catalog.partition_tree("c.oid")}) p(relid)
JOIN pg_class part ON part.oid = p.relid
JOIN pg_inherits i ON i.inhrelid = p.relid
JOIN pg_attribute own ON own.attrelid = p.relid AND own.attnum = -1
WHERE c.oid = ANY (%(oids)s) AND c.relkind = 'p' AND p.relid <> c.oid
"""
# A key can only change whether it is deferrable by being created again; REINDEX keeps the constraint.
_KEYS = "SELECT conrelid, oid FROM pg_constraint WHERE conrelid = ANY (%(oids)s) AND contype = 'p'"
_FILES = "SELECT oid, relfilenode FROM pg_class WHERE oid = ANY (%(oids)s) AND relkind = 'r'"


def partition_body(oid: int) -> str:
    """Return the body of a partition: it holds rows of its root."""
    return f"partition {oid}"


def table_fingerprints(cur: cursor, settings: PostgresSettings) -> list[TableFingerprint]:
    """Return the fingerprints of all captured tables that are published and readable, ordered by name.

    ``cur`` must not be in a transaction. One snapshot serves all queries: columns from before a rewrite with the file
    from after it would hide the rewrite permanently.
    """
    cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        return _read_fingerprints(cur, settings)
    finally:
        cur.execute("ROLLBACK")


def _read_fingerprints(cur: cursor, settings: PostgresSettings) -> list[TableFingerprint]:
    has_schemas = cur.connection.server_version >= 150000
    published = _PUBLISHED.format(
        member="coalesce(r.oid, s.oid)" if has_schemas else "r.oid", schemas=_SCHEMAS if has_schemas else ""
    )
    cur.execute(published, {"publication": settings.publication})
    readable = {oid: (published, is_member) for oid, published, is_member in cur.fetchall()}
    captured = catalog.captured_tables(cur, settings.table_filter, settings.watermark_schema)
    tables = [table for table in captured if table.oid in readable]
    parameters = {"oids": [table.oid for table in tables]}
    cur.execute(_COLUMNS, parameters)
    columns = {(oid, name): (number, version, blank) for oid, name, number, version, blank in cur.fetchall()}
    labels = _read_labels(cur, parameters)
    bodies: dict[int, dict[str, bool]] = defaultdict(dict)
    cur.execute(_PARTITIONS, parameters)
    for oid, partition, file, is_attached in cur.fetchall():
        bodies[oid][partition_body(partition)] = is_attached
        bodies[oid][f"file {file} of partition {partition}"] = False
    cur.execute(_KEYS, parameters)
    for oid, key in cur.fetchall():
        # Under a key that was deferrable for a time, the log named rows that left a key like rows that took it.
        bodies[oid][f"key {key}"] = False
    cur.execute(_FILES, parameters)
    files = dict(cur.fetchall())
    for oid, file in files.items():
        # A named member of the publication cannot be SET UNLOGGED, written, and SET LOGGED again. For others a new
        # file may hide writes without log.
        if not readable[oid][1]:
            bodies[oid][f"file {file}"] = False
    return [
        TableFingerprint(
            table.schema,
            {c.name: ColumnFingerprint(
                f"{c.type} key {c.key}", *columns.get((table.oid, c.name), (0, "", False)), labels[table.oid, c.name]
             ) for c in table.schema.columns},
            {f"table {table.oid}": True, **bodies[table.oid]},
            str(files.get(table.oid, "")),
            readable[table.oid][0],
        )
        for table in tables
    ]


def _read_labels(cur: cursor, parameters: Mapping[str, object]) -> Mapping[tuple[int, str], dict[str, str]]:
    """Return the enum labels that columns can hold, by table and column: internal number to label."""
    labels: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    ranges = _MULTIRANGES if cur.connection.server_version >= 140000 else _RANGES
    cur.execute(_LABELS.replace("{ranges}", ranges), parameters)
    for oid, name, number, label in cur.fetchall():
        labels[oid, name][number] = label
    return labels
