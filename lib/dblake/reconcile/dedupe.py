"""Find the chunk rows that log events evict from their window: the join of keys at the heart of reconcile.

Place: second step of a micro-batch. It is DBLog, section 3.2, algorithm 1, step 6 ("remove e.key from chunk"), for all
closing windows at once. Guarantee: a chunk row survives exactly if no event in its window has its key; then it is what
the table held at the high watermark. A row whose key has only partial images in the window may hold the only copy of a
column: it becomes a fill, reduced to the columns that none of those images carried. Any other row is evicted. A delete
in the window always evicts, since the row read may precede the delete. A create needs no rule of its own: a chunk row
read before the create was deleted in between. Only log events evict, never another chunk's rows. Applying the result to
the rows is left to ``task``.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.decode.columns import DELETE, OP, TRUNCATE
from dblake.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.landing.columns import CHUNK_ID

EVENTS, PARTIAL, TRUNCATED = "events", "partial", "truncated"


def touched_windows(in_window: DataFrame) -> DataFrame:
    """Return ``chunk_id, events, partial, truncated`` of the windows that hold events.

    Requires ``chunk_id, op, carried``. ``events`` and ``partial`` count events and partial images; ``truncated`` is
    true if a truncate is among them.
    """
    return in_window.groupBy(CHUNK_ID).agg(
        F.count("*").alias(EVENTS), F.count(CARRIED).alias(PARTIAL),
        F.bool_or(F.col(OP) == TRUNCATE).alias(TRUNCATED),
    )


def evicted_keys(chunk_keys: DataFrame, in_window: DataFrame, *, few: bool, partial: bool) -> DataFrame:
    """Return the keys of chunk rows that have events in their window; every other chunk row survives unchanged.

    ``chunk_keys`` has ``chunk_id, key_text``; ``in_window`` has these and ``op, carried``. Returns ``chunk_id,
    key_text, whole, carried``. If ``whole`` is false, all events of the key are partial images, and ``carried`` lists
    the columns they carried. Set ``few`` if every task can hold the events' keys; otherwise both sides are shuffled.
    Clear ``partial`` if no event is a partial image; then ``whole`` is always true.
    """
    keys = [CHUNK_ID, KEY_TEXT]
    events = in_window.where(F.col(KEY_TEXT).isNotNull())
    if not partial:
        touched = chunk_keys.join(_broadcast_if_few(events.select(keys), few), keys, "left_semi")
        return touched.withColumns({WHOLE: F.lit(True), CARRIED: F.lit(None).cast("array<string>")})
    whole = (F.col(OP) == DELETE) | F.col(CARRIED).isNull()
    by_key = events.groupBy(keys).agg(
        F.max(whole).alias(WHOLE), F.array_distinct(F.flatten(F.collect_list(CARRIED))).alias(CARRIED)
    )
    # A chunk returns a key once.
    return chunk_keys.join(_broadcast_if_few(by_key, few), keys, "inner")


def _broadcast_if_few(rows: DataFrame, few: bool) -> DataFrame:
    return F.broadcast(rows) if few else rows
