"""Delete rows of landing and events that are past their retention, once no reader needs them.

Place: below ``maintenance.run``, which decides that there may be some, and when they are old. Guarantee: of landing
the newest batch stays, and all from the first batch of an open chunk window on; of events those stay that
``retention`` keeps.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblake.events.schema import POSITION
from dblake.lake.layout import Paths
from dblake.lake.log import Application, record_batch
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, HIGH, KIND, LEASE_EPOCH
from dblake.maintenance.compaction import delete, delete_matching
from dblake.maintenance.retention import old_events_sql, superseded_positions
from dblake.reconcile.batch_summary import survey
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.windows import lows_without_high, parse_endings


def expire_landing(spark: SparkSession, paths: Paths, reconciled: int, landed_before: datetime) -> int:
    """Delete batches that landed before a time, were reconciled and serve no open window; return the rows deleted.

    The newest batch stays: the next batch number continues it, and its lease epoch identifies orphans.
    """
    landing = spark.read.format("delta").load(paths.landing).where(F.col(BATCH) <= reconciled)
    row = landing.where(F.col("landed_at") >= F.lit(landed_before)).agg(F.min(BATCH).alias(BATCH)).first()
    first_retained = row[BATCH] if row and row[BATCH] is not None else reconciled + 1
    last = min(first_retained - 1, reconciled - 1, _first_open_batch(spark, paths, reconciled) - 1)
    return delete(spark, paths.landing, f"{BATCH} <= {last}")


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
    return delete_matching(spark, paths.events, superseded, POSITION, is_old)


def _first_open_batch(spark: SparkSession, paths: Paths, reconciled: int) -> int:
    """Return the batch in which the oldest window that reconcile has not closed began.

    Without such a window it is the newest batch that reconcile has read.
    """
    landing = spark.read.format("delta").load(paths.landing)
    newest = landing.agg(F.max(LEASE_EPOCH).alias(LEASE_EPOCH)).first()
    if newest is None or newest[LEASE_EPOCH] is None:
        return reconciled
    files = LandingFiles(paths.landing, paths.source)
    watermarks = survey(files.files(1, files.newest_batch), 1, files.newest_batch).watermarks
    unread = [row for row in watermarks if row.kind == HIGH and row.batch > reconciled]
    first_batches = [ending.end.first_batch for ending in parse_endings(unread) if ending.window]
    ended = {row.chunk for row in watermarks if row.kind == HIGH}
    # Windows of earlier lease epochs have ended, or are orphans that never will.
    open_lows = [row for row in lows_without_high(watermarks, ended) if row.lease_epoch == newest[LEASE_EPOCH]]
    first_batches += [row.batch for row in open_lows]
    if open_lows:
        chunks = landing.where((F.col(KIND) == CHUNK) & F.col(CHUNK_ID).isin([row.chunk_id for row in open_lows]))
        first = chunks.agg(F.min(BATCH).alias(BATCH)).first()
        first_batches += [first[BATCH]] if first and first[BATCH] is not None else []
    return min([*first_batches, reconciled])
