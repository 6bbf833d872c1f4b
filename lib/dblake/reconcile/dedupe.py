"""Which chunk rows the log evicts from their window: the join of keys at the heart of reconcile.

DBLog, algorithm 1, step 6 ("remove e.key from chunk"), for all closing windows at once. A chunk row whose key no event
in the window touched is what the table held at the high watermark. One whose key was touched only by images that all
lack some column holds the only copy of that column: it becomes a fill, reduced to the columns none of those images
carried. Any other is evicted. A delete in the window always evicts, since the row read may belong to an earlier life
of the key; a create needs no rule of its own, for a chunk row read before it had a delete between. A window evicts by
log events alone, never by another chunk's rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.decode.columns import DELETE, OP, TRUNCATE
from dblake.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.landing.columns import CHUNK_ID

EVENTS, PARTIAL, TRUNCATED = "events", "partial", "truncated"


def touched_windows(in_window: DataFrame) -> DataFrame:
    """Return the windows that hold events: ``chunk_id``, how many ``events`` and ``partial`` images, ``truncated``.

    ``in_window`` has ``chunk_id, op, carried``.
    """
    return in_window.groupBy(CHUNK_ID).agg(
        F.count("*").alias(EVENTS), F.count(CARRIED).alias(PARTIAL),
        F.bool_or(F.col(OP) == TRUNCATE).alias(TRUNCATED),
    )


def evicted_keys(chunk_keys: DataFrame, in_window: DataFrame, *, few: bool, partial: bool) -> DataFrame:
    """Return the keys of chunk rows that events in their window touched: all other chunk rows survive as they are.

    ``chunk_keys`` has ``chunk_id, key_text``, ``in_window`` also ``op, carried``. Returns ``chunk_id, key_text,
    whole, carried``: without ``whole``, all events of the key were partial images, which carried these columns. The
    events are ``few`` if every task can hold their keys; else both sides are shuffled. Without ``partial`` images among
    them every touched key is evicted.
    """
    keys = [CHUNK_ID, KEY_TEXT]
    events = in_window.where(F.col(KEY_TEXT).isNotNull())
    if not partial:
        touched = chunk_keys.join(_shipped(events.select(keys), few), keys, "left_semi")
        return touched.withColumns({WHOLE: F.lit(True), CARRIED: F.lit(None).cast("array<string>")})
    whole = (F.col(OP) == DELETE) | F.col(CARRIED).isNull()
    by_key = events.groupBy(keys).agg(
        F.max(whole).alias(WHOLE), F.array_distinct(F.flatten(F.collect_list(CARRIED))).alias(CARRIED)
    )
    # A chunk returns a key once.
    return chunk_keys.join(_shipped(by_key, few), keys, "inner")


def _shipped(rows: DataFrame, few: bool) -> DataFrame:
    return F.broadcast(rows) if few else rows
