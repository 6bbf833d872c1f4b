"""Whether landing still holds all that decoding a stretch of it again takes: else it is refused, by name.

Upkeep removes landing that was reconciled. What is left may hold a batch, and not the chunk rows, the log or the low
watermark that a chunk window closing in it reaches back to: decoded again it would come out with other rows. The
events, which are there for longer, and the ledger tell what landing had.
"""

from __future__ import annotations

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblake.core.errors import LandingError, LandingGap
from dblake.events.schema import LOG, ORIGIN
from dblake.lake.layout import Paths
from dblake.landing.columns import BATCH, CHUNK_ID, KIND, LEASE_EPOCH, LOW, TABLE
from dblake.reconcile.batch_summary import survey
from dblake.reconcile.landing_files import LandingFiles
from dblake.reconcile.ledger import ORPHANED
from dblake.reconcile.windows import endings, reach


def require_landing(spark: SparkSession, paths: Paths, first: int, last: int) -> None:
    """Raises LandingGap if landing no longer holds what decoding batches ``first`` to ``last`` takes."""
    if not DeltaTable.is_deltatable(paths.landing):
        raise LandingError(f"source {paths.source} has no landing table yet", next_step="run capture and reconcile")
    landing = spark.read.format("delta").load(paths.landing)
    row = landing.agg(F.min(BATCH).alias("oldest")).first()
    oldest = row["oldest"] if row and row["oldest"] is not None else last + 1
    if oldest == 1:
        return
    # The batch before tells which lease epoch and incarnation were there.
    if first - 1 < oldest:
        raise LandingGap(
            f"landing no longer holds batch {first} and the one before it: it begins with batch {oldest}",
            next_step=f"reconcile --from {oldest + 1} at the earliest; a dump makes right what is older",
        )
    reaching = _reaching_back(spark, paths, landing, first, last, oldest)
    if reaching:
        raise LandingGap(
            f"chunk windows of {', '.join(reaching)} that close in batches {first} to {last} reach back to before "
            f"batch {oldest}, with which landing begins",
            next_step="give --from a later batch; a dump makes right what is older",
        )


def _reaching_back(
    spark: SparkSession, paths: Paths, landing: DataFrame, first: int, last: int, oldest: int
) -> list[str]:
    """The tables whose windows need batches that are gone."""
    span = F.col(BATCH).between(first, last)
    found = survey(LandingFiles(paths.landing, paths.source).files(first, last), first, last)
    windows = [ending.window for ending in endings(found.watermarks) if ending.window]
    tables = {window.table for window in windows if window.first_batch < oldest}
    if windows:
        gone = spark.read.format("delta").load(paths.events).where((F.col(BATCH) < oldest) & (F.col(ORIGIN) == LOG))
        of_window = gone.where(F.col(TABLE).isin(sorted({window.table for window in windows})) & reach(windows))
        tables |= {row[TABLE] for row in of_window.select(TABLE).distinct().collect()}
    ledger = spark.read.format("delta").load(paths.windows).where(span & (F.col("reason") == ORPHANED))
    lows = landing.where(F.col(KIND) == LOW).select(CHUNK_ID, TABLE, LEASE_EPOCH)
    orphans = ledger.join(lows, [CHUNK_ID, TABLE, LEASE_EPOCH], "left_anti")
    return sorted(tables | {row[TABLE] for row in orphans.select(TABLE).distinct().collect()})
