"""Compare two tables row by row, to count what decoding landing again has changed.

Place: between the staged tables and the redecode ledger. Guarantee: a row counts as the same only if every column is
equal, each value of an image included, and if both sides hold equally many copies of it. Which tables are compared,
and what follows from a difference, is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, TimestampType

from dblake.transform.redecode.changed_tables import COUNTS

_OLD, _NEW = "old", "new"


def count_differences(
    old: DataFrame, new: DataFrame, identity: Sequence[str], op_column: str | None
) -> DataFrame:
    """Return ``batch, table, op`` and four counts of rows: ``same``, ``different``, ``only_old``, ``only_new``.

    Both frames have the same columns, among them ``batch``, ``table``, those of ``identity`` and ``op_column``.
    ``identity`` pairs an old row with a new one; ``op_column`` becomes ``op``, which is NULL without one. A pair counts
    under the new row's batch, table and op.
    """
    rows = _with_fingerprint(old, _OLD, identity, op_column).unionByName(
        _with_fingerprint(new, _NEW, identity, op_column)
    )

    def fingerprints(side: str) -> Column:
        return F.sort_array(F.collect_list(F.when(F.col("side") == side, F.col("fingerprint"))))

    def group_columns(side: str) -> Column:
        return F.max(F.when(F.col("side") == side, F.struct("batch", "table", "op")))

    pairs = rows.groupBy("identity").agg(
        fingerprints(_OLD).alias(_OLD), fingerprints(_NEW).alias(_NEW),
        F.coalesce(group_columns(_NEW), group_columns(_OLD)).alias("group"),
    )
    kind = (
        F.when(F.size(_NEW) == 0, "only_old").when(F.size(_OLD) == 0, "only_new")
        .when(F.col(_OLD) == F.col(_NEW), "same").otherwise("different")
    )
    return (
        pairs.select("group.*", kind.alias("kind")).groupBy("batch", "table", "op")
        .agg(*(F.count_if(F.col("kind") == name).alias(name) for name in COUNTS))
    )


def _with_fingerprint(rows: DataFrame, side: str, identity: Sequence[str], op_column: str | None) -> DataFrame:
    """Return ``identity, batch, table, op, fingerprint, side``; the fingerprint is a hash of all columns."""
    fingerprint = F.md5(F.to_json(F.struct(*(_json_column(field) for field in rows.schema))))
    op = F.col(op_column) if op_column else F.lit(None).cast("string")
    return rows.select(
        F.struct(*identity).alias("identity"), "batch", "table", op.alias("op"), fingerprint.alias("fingerprint"),
        F.lit(side).alias("side"),
    )


def _json_column(field: StructField) -> Column:
    """Return a column that JSON holds without loss: a map as sorted entries, a timestamp as microseconds."""
    if isinstance(field.dataType, MapType):
        return F.array_sort(F.map_entries(field.name)).alias(field.name)
    if isinstance(field.dataType, TimestampType):
        return F.unix_micros(field.name).alias(field.name)
    return F.col(field.name)
