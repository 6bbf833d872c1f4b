"""What PostgreSQL's catalogue tells of rows that changed without row events, which its log never does; and of the log.

Numbers of tables, partitions, columns, enum labels and files, for whoever keeps them and compares them with those of
later. A column that was dropped and made again has another number, a table rewritten another file. That a file alone is
another one says nothing of a table: VACUUM FULL, CLUSTER and TRUNCATE give one, too. Of a partition it has to count,
since its TRUNCATE is not published as the root's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from psycopg2.extensions import cursor

from dblake.core.names import qualified, split_qualified
from dblake.core.source import ColumnFingerprint, LogRetention, TableFingerprint
from dblake.source.postgres import catalog as catalogue
from dblake.source.postgres.settings import PostgresSettings

# A table made anew is neither published (pgoutput) nor granted until preflight --init has run again.
_GRANTED = "SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND has_table_privilege(oid, 'SELECT')"
_PUBLISHED = """
SELECT c.oid FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %(publication)s AND has_table_privilege(c.oid, 'SELECT')
"""
_COLUMNS = """
SELECT a.attrelid, a.attname, a.attnum, a.xmin::text,
       NOT (a.atthasdef OR a.atthasmissing OR a.attidentity <> '' OR t.typtype = 'd')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ANY (%(oids)s) AND a.attnum > 0 AND NOT a.attisdropped
"""
# Enums are types of users', and so is all that is made of them; rows hold the number of a label.
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
# A partition made as one comes empty, in one transaction with its own columns (the entry of a system column is never
# written again); one that was attached was a table before.
_PARTITIONS = """
SELECT c.oid, p.relid::oid, part.relfilenode, i.xmin <> own.xmin
FROM pg_class c
CROSS JOIN LATERAL pg_partition_tree(c.oid) p
JOIN pg_class part ON part.oid = p.relid
JOIN pg_inherits i ON i.inhrelid = p.relid
JOIN pg_attribute own ON own.attrelid = p.relid AND own.attnum = -1
WHERE c.oid = ANY (%(oids)s) AND c.relkind = 'p' AND p.relid <> c.oid
"""
_FILES = "SELECT oid, relfilenode FROM pg_class WHERE oid = ANY (%(oids)s) AND relkind = 'r'"


# A slot without safe_wal_size keeps its log for ever.
_LOG = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, safe_wal_size, coalesce(wal_status = 'lost', false)
FROM pg_replication_slots WHERE slot_name = %s
"""
_ROWS = """
SELECT n.nspname, c.relname,
       CASE WHEN c.relkind = 'p' THEN (
           SELECT sum(greatest(leaf.reltuples, 0))
           FROM pg_partition_tree(c.oid) p JOIN pg_class leaf ON leaf.oid = p.relid WHERE p.isleaf
       ) ELSE c.reltuples END::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN %s
"""


def log_retention(cur: cursor, settings: PostgresSettings) -> LogRetention:
    """How the log stands for the source's slot."""
    cur.execute(_LOG, (settings.slot,))
    row = cur.fetchone()
    if row is None:
        return LogRetention(lost=True)
    behind, kept, room, lost = row
    return LogRetention(behind=behind, kept=kept, room=room, lost=lost)


def row_estimates(cur: cursor, tables: Sequence[str]) -> dict[str, int]:
    """What the last ANALYZE or VACUUM counted; nothing for a table that has seen neither."""
    if not tables:
        return {}
    cur.execute(_ROWS, (tuple(split_qualified(table) for table in tables),))
    return {qualified(schema, name): rows for schema, name, rows in cur.fetchall() if rows is not None and rows >= 0}


def table_fingerprints(cur: cursor, settings: PostgresSettings) -> list[TableFingerprint]:
    """All captured tables that are published and may be read, by name; ``cur`` is in no transaction.

    All of one moment: columns from before a rewrite and the file from after it would hide it for good.
    """
    cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        return _standings(cur, settings)
    finally:
        cur.execute("ROLLBACK")


def _standings(cur: cursor, settings: PostgresSettings) -> list[TableFingerprint]:
    cur.execute(_PUBLISHED if settings.plugin == "pgoutput" else _GRANTED, {"publication": settings.publication})
    ready = {oid for oid, in cur.fetchall()}
    found = catalogue.captured_tables(cur, settings.wanted, settings.watermark_schema)
    tables = [table for table in found if table.oid in ready]
    asked = {"oids": [table.oid for table in tables]}
    cur.execute(_COLUMNS, asked)
    columns = {(oid, name): (number, version, blank) for oid, name, number, version, blank in cur.fetchall()}
    labels = _labels(cur, asked)
    bodies: dict[int, dict[str, bool]] = defaultdict(dict)
    cur.execute(_PARTITIONS, asked)
    for oid, partition, file, attached in cur.fetchall():
        bodies[oid][f"partition {partition}"] = attached
        bodies[oid][f"file {file} of partition {partition}"] = False
    cur.execute(_FILES, asked)
    files = dict(cur.fetchall())
    return [
        TableFingerprint(
            table.schema,
            {c.name: ColumnFingerprint(
                f"{c.type} key {c.key}", *columns.get((table.oid, c.name), (0, "", False)), labels[table.oid, c.name]
             ) for c in table.schema.columns},
            {f"table {table.oid}": True, **bodies[table.oid]},
            str(files.get(table.oid, "")),
        )
        for table in tables
    ]


def _labels(cur: cursor, asked: Mapping[str, object]) -> Mapping[tuple[int, str], dict[str, str]]:
    """The labels that columns can hold, by table and column."""
    labels: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    ranges = _MULTIRANGES if cur.connection.server_version >= 140000 else _RANGES
    cur.execute(_LABELS.replace("{ranges}", ranges), asked)
    for oid, name, number, label in cur.fetchall():
        labels[oid, name][number] = label
    return labels
