"""A state table's row count and hash, in Spark SQL, to be held against the source's.

The twin of ``digest`` on the other side of landing, which says how the hash is made. It holds for types whose Spark
text is the source's canonical text: integers, text and characters, dates, and timestamps without a zone.
"""

from __future__ import annotations

from dblake.core.errors import Unsupported
from dblake.core.schema import TableSchema
from dblake.spark.sql_literals import identifier

_SAME_TEXT = (
    "smallint", "integer", "bigint", "text", "character", "uuid", "date", "timestamp without", "json", "inet",
)


def digest_sql(table: TableSchema, relation: str) -> str:
    """A query for ``rows, hash`` of ``relation``, which has the table's columns. Refuses other types by name."""
    for column in table.columns:
        if not column.type.startswith(_SAME_TEXT):
            raise Unsupported(
                f"column {column.name} of {table.table}: type {column.type} has no text that both sides share",
                next_step="leave the table out",
            )
    texts = ", ".join(f"coalesce(cast({identifier(name)} AS STRING), chr(30))" for name in table.names)
    return (
        f"SELECT count(*) AS rows, coalesce(sum(cast(conv(substr(md5(concat_ws(chr(31), {texts})), 1, 15), 16, 10)"
        f" AS DECIMAL(38, 0))), 0) AS hash FROM {relation}"
    )
