"""Reject a redecode whose landing rows are gone, by table name.

Place: before a redecode run reads landing, and again after it. Guarantee: a run that passes has every landing row that
decides its events. Maintenance removes landing that was reconciled; it may leave a batch but remove the chunk rows, log
rows or low watermark to which a chunk window that closes in it reaches back. Without them the window would evict other
rows. The events and the window ledger, which are retained longer, show what landing held.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dblake.base.core.errors import LandingError, LandingGap
from dblake.base.core.window import ChunkWindow
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import has_table
from dblake.landing.columns import BATCH, CHUNK_ID, INCARNATION, KIND, LEASE_EPOCH, LOW, LSN, TABLE, TXID
from dblake.transform.events.files import LOG, ORIGIN
from dblake.transform.reconcile.batch_summary import survey
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.ledger import ORPHANED
from dblake.transform.reconcile.windows import parse_endings


def require_landing(spark: SparkSession, paths: Paths, first: int, last: int) -> None:
    """Raise LandingGap if landing lacks rows that decide the events of batches ``first`` to ``last``.

    Raises LandingError if there is no landing table.
    """
    if not has_table(paths.landing):
        raise LandingError(f"source {paths.source} has no landing table yet", next_step="run capture and reconcile")
    landing = spark.read.format("delta").load(paths.landing)
    row = landing.agg(F.min(BATCH).alias("oldest")).first()
    oldest = row["oldest"] if row and row["oldest"] is not None else last + 1
    if oldest == 1:
        return
    # The batch before the first one supplies the lease epoch and incarnation that preceded.
    if first - 1 < oldest:
        raise LandingGap(
            f"landing no longer holds batch {first} and the one before it: it begins with batch {oldest}",
            next_step=f"reconcile --from {oldest + 1} at the earliest; dump the tables to correct older rows",
        )
    tables = _tables_with_missing_rows(spark, paths, landing, first, last, oldest)
    if tables:
        raise LandingGap(
            f"chunk windows of {', '.join(tables)} that close in batches {first} to {last} reach back to before "
            f"batch {oldest}, with which landing begins",
            next_step="give --from a later batch; dump the tables to correct older rows",
        )


def _tables_with_missing_rows(
    spark: SparkSession, paths: Paths, landing: DataFrame, first: int, last: int, oldest: int
) -> list[str]:
    """Return the tables whose windows close in these batches and need batches before ``oldest``."""
    span = F.col(BATCH).between(first, last)
    summary = survey(LandingFiles(paths.landing, paths.source).files(first, last), first, last)
    windows = [ending.window for ending in parse_endings(summary.watermarks) if ending.window]
    tables = {window.table for window in windows if window.first_batch < oldest}
    if windows:
        removed = spark.read.format("delta").load(paths.events).where((F.col(BATCH) < oldest) & (F.col(ORIGIN) == LOG))
        is_of_table = F.col(TABLE).isin(sorted({window.table for window in windows}))
        in_reach = removed.where(is_of_table & _reach_condition(windows))
        tables |= {row[TABLE] for row in in_reach.select(TABLE).distinct().collect()}
    ledger = spark.read.format("delta").load(paths.windows).where(span & (F.col("reason") == ORPHANED))
    lows = landing.where(F.col(KIND) == LOW).select(CHUNK_ID, TABLE, LEASE_EPOCH)
    orphans = ledger.join(lows, [CHUNK_ID, TABLE, LEASE_EPOCH], "left_anti")
    return sorted(tables | {row[TABLE] for row in orphans.select(TABLE).distinct().collect()})


def _reach_condition(windows: Iterable[ChunkWindow]) -> Column:
    """Return a condition on ``incarnation, lsn, txid``: true for every log row that a window holds, and for few others.

    The condition consists of comparisons with constants, so that file statistics rule out earlier and later files. A
    transaction that a chunk's snapshot could not see may have landed long before the chunk's low watermark.
    """
    by_incarnation: dict[int, list[ChunkWindow]] = {}
    for window in windows:
        by_incarnation.setdefault(window.high.incarnation, []).append(window)
    near = F.lit(False)
    for incarnation, spans in by_incarnation.items():
        since = F.col(LSN) >= min(window.low.lsn for window in spans)
        oldest = [window.snapshot.xmin for window in spans if window.snapshot]
        if oldest:
            since = since | (F.col(TXID) >= min(oldest))
        until = F.col(LSN) <= max(window.high.lsn for window in spans)
        near = near | ((F.col(INCARNATION) == incarnation) & until & since)
    return near
