"""Reads how much log the slot retains, and estimates of tables' row counts, for ``status``."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2.extensions import cursor

from dblake.base.core.names import qualified, split_qualified
from dblake.base.core.source import LogRetention
from dblake.ingest.source.postgres.catalog import partition_tree
from dblake.ingest.source.postgres.settings import PostgresSettings

# safe_wal_size is NULL if max_slot_wal_keep_size is unlimited.
_SLOT = """
SELECT pg_wal_lsn_diff(log_end, confirmed_flush_lsn)::bigint, pg_wal_lsn_diff(log_end, restart_lsn)::bigint,
       safe_wal_size, coalesce(wal_status = 'lost', false)
FROM pg_replication_slots,
     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) AS l(log_end)
WHERE slot_name = %s
"""
_ROW_ESTIMATES = f"""
SELECT n.nspname, c.relname,
       CASE WHEN c.relkind = 'p' THEN (
           SELECT sum(greatest(leaf.reltuples, 0))
           FROM pg_class leaf WHERE leaf.oid IN ({partition_tree("c.oid")}) AND leaf.relkind <> 'p'
       ) ELSE c.reltuples END::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN %s
"""


def log_retention(cur: cursor, settings: PostgresSettings) -> LogRetention:
    """Return the retention of the source's slot; ``lost`` if the slot does not exist."""
    cur.execute(_SLOT, (settings.slot,))
    row = cur.fetchone()
    if row is None:
        return LogRetention(lost=True)
    behind, kept, room, lost = row
    return LogRetention(behind=behind, kept=kept, room=room, lost=lost)


def row_estimates(cur: cursor, tables: Sequence[str]) -> dict[str, int]:
    """Return the rows that the last ANALYZE or VACUUM counted, by qualified name; tables without either are missing."""
    if not tables:
        return {}
    cur.execute(_ROW_ESTIMATES, (tuple(split_qualified(table) for table in tables),))
    return {qualified(schema, name): rows for schema, name, rows in cur.fetchall() if rows is not None and rows >= 0}
