"""Two tables that should hold the same rows, row by row: what decoding landing again has changed.

Promise: a row counts as the same only if every column is, each value of an image included, and each copy of it is
there on both sides. Which rows are set against each other is told by the columns that name one, such as an event's
position. Which tables those are, and what follows from it, is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, TimestampType

COUNTS = ("same", "different", "only_old", "only_new")
_OLD, _NEW = "old", "new"


def compared(old: DataFrame, new: DataFrame, named_by: Sequence[str], letter: str | None) -> DataFrame:
    """``batch, table, op`` and how many rows are the same, different, or on one side only.

    Both have columns ``batch`` and ``table``; ``letter`` is the one that becomes ``op``, if there is one. A row that is
    on both sides counts under what the new one says of itself.
    """
    rows = _told(old, _OLD, named_by, letter).unionByName(_told(new, _NEW, named_by, letter))

    def all_of(side: str) -> Column:
        return F.sort_array(F.collect_list(F.when(F.col("side") == side, F.col("content"))))

    def place(side: str) -> Column:
        return F.max(F.when(F.col("side") == side, F.struct("batch", "table", "op")))

    met = rows.groupBy("named").agg(
        all_of(_OLD).alias(_OLD), all_of(_NEW).alias(_NEW), F.coalesce(place(_NEW), place(_OLD)).alias("place")
    )
    kind = (
        F.when(F.size(_NEW) == 0, "only_old").when(F.size(_OLD) == 0, "only_new")
        .when(F.col(_OLD) == F.col(_NEW), "same").otherwise("different")
    )
    return (
        met.select("place.*", kind.alias("kind")).groupBy("batch", "table", "op")
        .agg(*(F.count_if(F.col("kind") == name).alias(name) for name in COUNTS))
    )


def _told(rows: DataFrame, side: str, named_by: Sequence[str], letter: str | None) -> DataFrame:
    content = F.md5(F.to_json(F.struct(*(_comparable(field) for field in rows.schema))))
    op = F.col(letter) if letter else F.lit(None).cast("string")
    return rows.select(
        F.struct(*named_by).alias("named"), "batch", "table", op.alias("op"), content.alias("content"),
        F.lit(side).alias("side"),
    )


def _comparable(field: StructField) -> Column:
    """A column as JSON holds it without loss: of maps the order is nothing, of timestamps every microsecond counts."""
    if isinstance(field.dataType, MapType):
        return F.array_sort(F.map_entries(field.name)).alias(field.name)
    if isinstance(field.dataType, TimestampType):
        return F.unix_micros(field.name).alias(field.name)
    return F.col(field.name)
