"""Which rows of a chunk stand, given what the log did in the chunk's window.

Third step of reconcile, the heart of it. A chunk row whose key no event in the window touched is what the table held
at the high watermark. One whose key was touched only by images that all lack some column is the only copy of that
column: it stands as a fill, reduced to the columns none of those images carried. Any other gives way to the log. A
delete in the window always evicts, since the row read may be that of an earlier life of the key; a create needs no
rule of its own, for a chunk row read before it had a delete between. A window evicts by log events alone, never by
another chunk's rows.

One left join does all of it, so that chunk rows are decoded and passed over once. Positions are left to ``order``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from dblake.decode.columns import AFTER, DELETE, FILL, OP, PARTIAL
from dblake.events.keys import key_sql
from dblake.landing.columns import CHUNK_ID
from dblake.reconcile.decode import CARRIED

_KEY_TEXT, _TOUCHED, _WHOLE = "key_text", "touched", "whole"


def _key_text() -> Column:
    # The decoder gives key images in key order.
    return F.expr(key_sql("map_keys(key)")).alias(_KEY_TEXT)


def evictors(touched: DataFrame) -> DataFrame:
    """One row for each window and key that an event in the window touched.

    ``whole`` tells whether the log alone has the row; if not, ``carried`` has the columns the log has.
    """
    return touched.select(
        CHUNK_ID, _key_text(), ((F.col(OP) == DELETE) | F.col(CARRIED).isNull()).alias(_WHOLE), CARRIED
    ).groupBy(CHUNK_ID, _KEY_TEXT).agg(
        F.max(_WHOLE).alias(_WHOLE), F.flatten(F.collect_set(CARRIED)).alias(CARRIED)
    )


def survivors(chunk_rows: DataFrame, evicting: DataFrame, emptied: DataFrame) -> DataFrame:
    """The decoded chunk rows that stand, whole or as fills. ``emptied`` has the windows with a truncate in them."""
    rival = evicting.withColumn(_TOUCHED, F.lit(True))
    rows = chunk_rows.join(F.broadcast(emptied), CHUNK_ID, "left_anti").withColumn(_KEY_TEXT, _key_text())
    untouched = F.col(_TOUCHED).isNull()
    rest = F.map_filter(AFTER, lambda name, _: ~F.array_contains(CARRIED, name))
    return (
        rows.join(rival, [CHUNK_ID, _KEY_TEXT], "left")
        .where(untouched | ~F.col(_WHOLE))
        .withColumn(AFTER, F.when(untouched, F.col(AFTER)).otherwise(rest))
        .where(F.size(AFTER) > 0)
        .withColumn(OP, F.when(untouched, F.col(OP)).otherwise(F.lit(FILL)))
        .withColumn(PARTIAL, F.when(untouched, F.col(PARTIAL)).otherwise(F.lit(True)))
        .select(*chunk_rows.columns)
    )
