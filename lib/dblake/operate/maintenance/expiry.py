"""Delete events that are past their retention, once no reader needs them.

Place: below ``maintenance.run``, which decides that there may be some, and when they are old. Guarantee: those events
stay that ``retention`` keeps.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, record_batch
from dblake.landing.columns import BATCH
from dblake.operate.maintenance.compaction import delete_matching
from dblake.operate.maintenance.retention import old_events_sql, superseded_positions


def expire_events(spark: SparkSession, paths: Paths, upto: int, committed_before: datetime) -> int:
    """Delete events up to a batch, committed before a time, that later ones supersede; return their number."""
    is_old = old_events_sql(committed_before, upto)
    events = spark.read.format("delta").load(paths.events)
    row = events.where(is_old).agg(F.max(BATCH).alias(BATCH)).first()
    if row is None or row[BATCH] is None:
        return 0
    # Recorded before the delete: from now on the events of these batches are incomplete and not countable.
    record_batch(paths.events, Application.consolidation(paths.source), row[BATCH])
    superseded = superseded_positions(events, committed_before, upto)
    return delete_matching(spark, paths.events, superseded, Position.COLUMNS, is_old)
