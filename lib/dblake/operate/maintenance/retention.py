"""Events that may be deleted: old ones that a later whole event of the same key, also old, supersedes.

Place: between events and ``maintenance.run``. Guarantee: the newest whole event of every key is kept however old it is,
and every event after it, every truncate and every event without a key. A partial create of a key change needs the row
of its old key: while that create is there, so is what makes up the row. So state can be rebuilt from the first event
on, a dump's end still sees every key, and only history is lost (Databus calls this log consolidation). Which events
count as old is the caller's decision.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.landing.columns import BATCH, COMMITTED_AT, TABLE
from dblake.payloads.decode.columns import KEY, KEY_BEFORE, OP, PARTIAL
from dblake.transform.spark.sql_literals import instant


def old_events_sql(committed_before: datetime, upto_batch: int) -> str:
    """Return an SQL condition for events committed before a time and landed up to a batch; file statistics prune it."""
    return f"{COMMITTED_AT} < {instant(committed_before)} AND {BATCH} <= {upto_batch}"


def superseded_positions(events: DataFrame, committed_before: datetime, upto_batch: int) -> DataFrame:
    """Return the positions of the old events that may be deleted.

    Requires: incarnation, lsn, seq, table, op, key, partial, committed_at, batch; key_before unless an earlier version
    made the table. Returns: incarnation, lsn, seq.
    """
    old = events.where(old_events_sql(committed_before, upto_batch)).where(F.col(KEY).isNotNull())
    is_partial = F.coalesce(PARTIAL, F.lit(False))
    is_whole = F.col(OP).isin(Op.CREATE, Op.READ, Op.UPDATE, Op.DELETE) & ~is_partial
    rows = _by_key(old, KEY, is_whole=is_whole, is_delete=F.col(OP) == Op.DELETE, is_move=F.lit(False))
    if KEY_BEFORE in events.columns:
        moves = old.where((F.col(OP) == Op.CREATE) & is_partial & F.col(KEY_BEFORE).isNotNull())
        never = F.lit(False)
        rows = rows.unionByName(_by_key(moves, KEY_BEFORE, is_whole=never, is_delete=never, is_move=F.lit(True)))
    window = W.partitionBy(TABLE, "of")
    # The delete of a key change, and all that follows, does not supersede the row that the change moved.
    is_superseding = F.col("is_whole") & (
        F.col("moved_at").isNull() | (F.col("at") < F.col("moved_at")) & ~F.col("is_delete")
    )
    return (
        rows.withColumn("moved_at", F.min(F.when(F.col("is_move"), F.col("at"))).over(window))
        .withColumn("newest", F.max(F.when(is_superseding, F.col("at"))).over(window))
        .where((F.col("at") < F.col("newest")) & ~F.col("is_move"))
        .select("at.*")
    )


def _by_key(events: DataFrame, key: str, **marks: Column) -> DataFrame:
    """Return the events' tables, keys, positions and marks; ``of`` is a key that Spark can partition by."""
    named = [mark.alias(name) for name, mark in marks.items()]
    return events.select(
        TABLE, F.array_sort(F.map_entries(key)).alias("of"), F.struct(*Position.COLUMNS).alias("at"), *named
    )
