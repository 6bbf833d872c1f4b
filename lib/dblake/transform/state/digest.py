"""Count and hash a state table's rows in Spark SQL, for comparison with the source's.

Place: after state; quickstart compares it with ``source.postgres.digest``, which defines the hash. Guarantee: equal
rows have equal hashes for types whose Spark text is the source's canonical text: integers, text, dates, and timestamps
without a zone. Other types are rejected.
"""

from __future__ import annotations

from dblake.base.core.errors import Unsupported
from dblake.base.core.schema import TableSchema
from dblake.transform.spark.sql_literals import identifier

_SAME_TEXT = (
    "smallint", "integer", "bigint", "text", "character", "uuid", "date", "timestamp without", "json", "inet",
)


def digest_sql(table: TableSchema, relation: str) -> str:
    """Return a query for ``rows, hash`` of ``relation``, which has the table's columns.

    Raises Unsupported for a column whose type has another text in Spark than at the source.
    """
    for column in table.columns:
        if not column.type.startswith(_SAME_TEXT):
            raise Unsupported(
                f"column {column.name} of {table.table}: Spark and the source write type {column.type} differently",
                next_step="exclude the table",
            )
    texts = ", ".join(f"coalesce(cast({identifier(name)} AS STRING), chr(30))" for name in table.names)
    return (
        f"SELECT count(*) AS rows, coalesce(sum(cast(conv(substr(md5(concat_ws(chr(31), {texts})), 1, 15), 16, 10)"
        f" AS DECIMAL(38, 0))), 0) AS hash FROM {relation}"
    )
