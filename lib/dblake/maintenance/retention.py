"""Events that have had their time: old ones of a key that a later whole one of it, also old, has made needless.

The newest whole event of every key stays however old it is, and all after it, truncates and events without a key. So
state can still be built anew from the first event on, a dump's end still knows every key there was, and only history
from before is gone (Databus calls this consolidating its log). How old is old is left to the caller.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dblake.decode.columns import CREATE, DELETE, KEY, OP, PARTIAL, READ, UPDATE
from dblake.events.schema import POSITION
from dblake.landing.columns import BATCH, COMMITTED_AT, TABLE
from dblake.spark.sql_literals import instant


def old(committed_before: datetime, upto_batch: int) -> str:
    """SQL for events committed before then and landed up to a batch; of use to whoever must prune files as well."""
    return f"{COMMITTED_AT} < {instant(committed_before)} AND {BATCH} <= {upto_batch}"


def superseded(events: DataFrame, committed_before: datetime, upto_batch: int) -> DataFrame:
    """The positions of those ``old`` events that may go."""
    whole = F.col(OP).isin(CREATE, READ, UPDATE, DELETE) & ~F.coalesce(PARTIAL, F.lit(False))
    at = F.struct(*POSITION)
    # Maps cannot be grouped by.
    key = F.array_sort(F.map_entries(KEY))
    of_key = Window.partitionBy(TABLE, key)
    return (
        events.where(old(committed_before, upto_batch)).where(F.col(KEY).isNotNull())
        .select(*POSITION, at.alias("at"), F.max(F.when(whole, at)).over(of_key).alias("newest"))
        .where(F.col("at") < F.col("newest"))
        .select(*POSITION)
    )
