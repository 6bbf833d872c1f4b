"""Events that may be deleted: old ones that a later whole event of the same key, also old, supersedes.

Place: between events and ``maintenance.run``. Guarantee: the newest whole event of every key is kept however old it is,
and every event after it, every truncate and every event without a key. So state can be rebuilt from the first event on,
a dump's end still sees every key, and only history is lost (Databus calls this log consolidation). Which events count
as old is the caller's decision.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.landing.columns import BATCH, COMMITTED_AT, TABLE
from dblake.payloads.decode.columns import KEY, OP, PARTIAL
from dblake.transform.spark.sql_literals import instant


def old_events_sql(committed_before: datetime, upto_batch: int) -> str:
    """Return an SQL condition for events committed before a time and landed up to a batch; file statistics prune it."""
    return f"{COMMITTED_AT} < {instant(committed_before)} AND {BATCH} <= {upto_batch}"


def superseded_positions(events: DataFrame, committed_before: datetime, upto_batch: int) -> DataFrame:
    """Return the positions of the old events that may be deleted.

    Requires: incarnation, lsn, seq, table, op, key, partial, committed_at, batch. Returns: incarnation, lsn, seq.
    """
    is_whole = F.col(OP).isin(Op.CREATE, Op.READ, Op.UPDATE, Op.DELETE) & ~F.coalesce(PARTIAL, F.lit(False))
    at = F.struct(*Position.COLUMNS)
    # Spark cannot partition by a map.
    key = F.array_sort(F.map_entries(KEY))
    by_key = W.partitionBy(TABLE, key)
    return (
        events.where(old_events_sql(committed_before, upto_batch)).where(F.col(KEY).isNotNull())
        .select(*Position.COLUMNS, at.alias("at"), F.max(F.when(is_whole, at)).over(by_key).alias("newest"))
        .where(F.col("at") < F.col("newest"))
        .select(*Position.COLUMNS)
    )
