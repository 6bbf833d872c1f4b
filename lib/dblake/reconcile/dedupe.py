"""Which rows of a chunk stand, given what the log did in the chunk's window.

Third step of reconcile, the heart of it. A chunk row whose key no event in the window touched is what the table held
at the high watermark. One whose key was touched only by images that all lack some column is the only copy of that
column: it stands as a fill, reduced to the columns none of those images carried. Any other gives way to the log. A
delete in the window always evicts, since the row read may be that of an earlier life of the key; a create needs no
rule of its own, for a chunk row read before it had a delete between. A window evicts by log events alone, never by
another chunk's rows.

Positions are left to ``order``.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.decode.columns import AFTER, DELETE, FILL, OP, READ, TRUNCATE
from dblake.landing.columns import CHUNK_ID
from dblake.reconcile.decode import CARRIED, KEY_TEXT

_WHOLE = "whole"
_PARTIAL, _TRUNCATES, _ROWS = "partial", "truncates", "rows"


def weights(touched: DataFrame) -> DataFrame:
    """One row that tells how much was touched: all, by partial images, and by truncates; for ``survivors``."""
    return touched.agg(
        F.count("*").alias(_ROWS), F.count(CARRIED).alias(_PARTIAL),
        F.count(F.when(F.col(OP) == TRUNCATE, 1)).alias(_TRUNCATES),
    )


def survivors(chunk_rows: DataFrame, touched: DataFrame, *, few: bool, partial: bool, truncates: bool) -> DataFrame:
    """The chunk rows that stand, with ``op``: whole as reads, or as fills.

    ``touched`` are the events of the windows; of them are ``few`` if every task can hold them all, and ``partial``
    and ``truncates`` tell whether there are such at all: where there are none, neither is anything to look for.
    """
    rows = chunk_rows
    if truncates:
        emptied = touched.where(F.col(OP) == TRUNCATE).select(CHUNK_ID).distinct()
        rows = rows.join(F.broadcast(emptied), CHUNK_ID, "left_anti")
    keys = [CHUNK_ID, KEY_TEXT]
    if not partial:
        rivals = touched.select(*keys).distinct()
        return rows.join(_sent(rivals, few), keys, "left_anti").withColumn(OP, F.lit(READ))
    rivals = touched.select(*keys, ((F.col(OP) == DELETE) | F.col(CARRIED).isNull()).alias(_WHOLE), CARRIED)
    rivals = rivals.groupBy(*keys).agg(F.max(_WHOLE).alias(_WHOLE), F.flatten(F.collect_set(CARRIED)).alias(CARRIED))
    untouched = F.col(_WHOLE).isNull()
    rest = F.map_filter(AFTER, lambda name, _: ~F.array_contains(CARRIED, name))
    return (
        rows.join(_sent(rivals, few), keys, "left")
        .where(untouched | ~F.col(_WHOLE))
        .withColumn(AFTER, F.when(untouched, F.col(AFTER)).otherwise(rest))
        .where(F.size(AFTER) > 0)
        .withColumn(OP, F.when(untouched, F.lit(READ)).otherwise(F.lit(FILL)))
        .select(*rows.columns, OP)
    )


def _sent(rivals: DataFrame, few: bool) -> DataFrame:
    return F.broadcast(rivals) if few else rivals
