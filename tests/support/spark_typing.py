"""Read source texts and keys by Spark SQL: the reference that the product's readings by Arrow and DuckDB must equal.

The SQL never rounds, shifts or fails. It yields NULL for a text that the type cannot hold unchanged.
"""

from __future__ import annotations

import re

from dblake.transform.spark.sql_literals import literal
from dblake.transform.spark.types import TEXT

_READ = {
    # The cast accepts 'epoch', '0044-03-15 BC' and '12024-01-01', too; only the length distinguishes them from a date.
    "DATE": "CASE WHEN length({v}) = 10 THEN try_cast({v} AS DATE) END",
    "TIMESTAMP_NTZ": "CASE WHEN substr({v}, 5, 1) = '-' AND {v} NOT LIKE '% BC' "
                     "THEN try_cast({v} AS TIMESTAMP_NTZ) END",
    # PostgreSQL sends +00, MySQL no zone: both are UTC, whatever the zone of Spark's session.
    "TIMESTAMP": "CASE WHEN substr({v}, 5, 1) = '-' AND {v} NOT LIKE '% BC' THEN try_cast("
                 "CASE WHEN substr({v}, 12) RLIKE '[+-]' THEN {v} ELSE concat({v}, '+00') END AS TIMESTAMP) END",
    "BINARY": "unhex(substr({v}, 3))",
}
# The cast rounds silently, so the text's digits beyond the scale are counted first.
_READ_DECIMAL = (
    "CASE WHEN instr({v}, '.') = 0 OR length(trim(TRAILING '0' FROM substring_index({v}, '.', -1))) <= {scale} "
    "THEN try_cast({v} AS {type}) END"
)
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def read_sql(spark: str, text: str) -> str:
    """Return SQL that converts the SQL expression ``text`` to the type ``spark``; NULL if it cannot hold the value."""
    if spark == TEXT:
        return text
    decimal = _DECIMAL.fullmatch(spark)
    if decimal:
        return _READ_DECIMAL.format(v=text, type=spark, scale=decimal[2])
    return _READ.get(spark, f"try_cast({{v}} AS {spark})").format(v=text)


def key_sql(names: tuple[str, ...]) -> str:
    """Return SQL for the key string of a row whose column ``key`` maps names to texts.

    The text of a single key column is unchanged; several columns make a JSON array, so that no two keys are equal.
    """
    if len(names) == 1:
        return f"key[{literal(names[0])}]"
    return f"to_json(transform(array({', '.join(map(literal, names))}), part -> key[part]))"
