"""Every event gets its place in history.

Last step of reconcile. Log events keep the position they have; a dumped row that stands takes its high watermark's,
since it is what the table held then. Promises EVENTS rows, none twice and no two with one position, each partition in
order of position. Appending them is left to the pipeline.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.decode.columns import BEFORE, FILL, OP, PARTIAL
from dblake.events.schema import DUMP, EVENTS, LOG, ORIGIN, POSITION
from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    INCARNATION,
    LAST_IN_TXN,
    LSN,
    SCHEMA_ID,
    TABLE,
    TXID,
)
from dblake.reconcile.windows import WINDOW


def log_events(decoded: DataFrame) -> DataFrame:
    """Decoded log rows as events."""
    return decoded.withColumn(ORIGIN, F.lit(LOG)).select(*EVENTS.names)


def dump_events(survivors: DataFrame, windows: DataFrame) -> DataFrame:
    """Surviving chunk rows as events, at the high watermarks of their windows."""
    high = F.broadcast(windows.select(
        F.col(WINDOW).alias("w_window"), F.col(CHUNK_ID).alias("w_chunk"), TABLE, SCHEMA_ID, INCARNATION,
        F.col("high_lsn").alias(LSN), BATCH, TXID, COMMITTED_AT,
    ))
    placed = survivors.join(high, F.col(CHUNK_ID) == F.col("w_window"), "inner").withColumns({
        CHUNK_ID: F.col("w_chunk"), BEFORE: F.lit(None).cast(EVENTS[BEFORE].dataType), LAST_IN_TXN: F.lit(False),
        ORIGIN: F.lit(DUMP), PARTIAL: F.col(OP) == FILL,
    })
    return placed.select(*EVENTS.names)


def in_order(events: DataFrame) -> DataFrame:
    """Each partition, and so each file, by position."""
    return events.sortWithinPartitions(*POSITION)
