"""Computes a table's row count and hash in PostgreSQL, to compare them with the lake's. Quickstart and tests only.

The hash does not depend on the order of rows: it is the sum, over all rows, of 60 bits of the MD5 of the row's
canonical text. ``state.digest`` computes the same from a state table; neither side reads the other's rows.
"""

from __future__ import annotations

from psycopg2 import sql

from dblake.base.core.names import split_qualified
from dblake.base.core.schema import TableSchema
from dblake.ingest.source.postgres.connection import connect
from dblake.ingest.source.postgres.driver_errors import translate_errors
from dblake.ingest.source.postgres.settings import PostgresSettings


def digests(settings: PostgresSettings, tables: list[TableSchema]) -> dict[str, tuple[int, int]]:
    """Return ``(rows, hash)`` by qualified table name, all from one snapshot."""
    conn = connect(settings, purpose="digest")
    try:
        with translate_errors(settings), conn.cursor() as cur:
            cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            results = {}
            for table in tables:
                cur.execute(_query(table))
                rows, digest = cur.fetchone()
                results[table.table] = (rows, int(digest))
            cur.execute("COMMIT")
            return results
    finally:
        conn.close()


def _query(table: TableSchema) -> sql.Composable:
    # concat() writes a value as the log does; a cast to text would strip the trailing blanks of char(n).
    texts = sql.SQL(", ").join(
        sql.SQL("CASE WHEN {0} IS NULL THEN chr(30) ELSE concat({0}) END").format(sql.Identifier(name))
        for name in table.names
    )
    return sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || substr(md5(concat_ws(chr(31), {})), 1, 15))::bit(60)::bigint), 0)::text"
        " FROM {}"
    ).format(texts, sql.Identifier(*split_qualified(table.table)))
