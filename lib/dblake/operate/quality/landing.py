"""Invariants of landing: consecutive batches, each one commit under one lease, and the log in its order.

Place: between landing and ``quality.run``. Reduces landing to one row per batch without reading payloads, so it reports
counts only. The first batch of the frame has no predecessor to compare with, so batches that retention removed are not
reported as missing. Which batches to read, and which batch landing's newest commit names, is the caller's decision.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from dblake.base.core.position import Position
from dblake.landing.columns import (
    BATCH,
    CHUNK,
    DDL,
    HEARTBEAT,
    HIGH,
    KIND,
    LANDED_AT,
    LEASE_EPOCH,
    LOW,
    MOVED,
    ROW,
    SCHEMA,
    TRUNCATE,
    VERIFY_CHUNK,
    VERIFY_HIGH,
    VERIFY_LOW,
)
from dblake.operate.quality.suite import Expectation, expect_no_violation, expect_not_null, expect_one_of

_IN_LOG_ORDER = (ROW, TRUNCATE, LOW, HIGH, HEARTBEAT, DDL, VERIFY_LOW, VERIFY_HIGH)
"""Kinds in the log's order. A schema has the position at which a chunk first showed it; chunk rows and moves, none."""
_DEFINED = (*_IN_LOG_ORDER, SCHEMA, CHUNK, VERIFY_CHUNK, MOVED)

EXPECTATIONS: tuple[Expectation, ...] = (
    expect_not_null(BATCH, "every row of landing has a batch"),
    expect_one_of("missing_after", [0], "batch numbers are consecutive up to the newest commit"),
    expect_one_of("commits", [1], "a batch is one commit"),
    expect_one_of("leases", [1], "a batch has one lease epoch"),
    expect_no_violation("lease_fell", "lease epochs never decrease from batch to batch"),
    expect_no_violation("position_fell", "log positions never decrease from batch to batch"),
    expect_no_violation("unknown_kind", "every row of landing has a defined kind"),
)


def summarize_batches(landing: DataFrame, newest: int) -> DataFrame:
    """Return one row per batch of landing; ``newest`` is the batch that landing's newest commit names.

    Requires: batch, kind, landed_at, lease_epoch, incarnation, lsn, seq.
    Returns: batch, commits, leases, missing_after (number of batches absent behind this one), and the booleans
    unknown_kind, lease_fell and position_fell.
    """
    is_in_log_order = F.col(KIND).isin(*_IN_LOG_ORDER)
    position = F.when(is_in_log_order, F.struct(*Position.COLUMNS))
    batches = landing.groupBy(BATCH).agg(
        F.count_distinct(LANDED_AT).alias("commits"), F.count_distinct(LEASE_EPOCH).alias("leases"),
        F.min(LEASE_EPOCH).alias("first_lease"), F.max(LEASE_EPOCH).alias("last_lease"),
        F.min(position).alias("first"), F.max(position).alias("last"),
        F.bool_or(~F.coalesce(F.col(KIND).isin(*_DEFINED), F.lit(False))).alias("unknown_kind"),
    )
    # A single partition is enough for one row per batch.
    by_batch = W.orderBy(BATCH)
    earlier = by_batch.rowsBetween(W.unboundedPreceding, -1)
    next_batch = F.coalesce(F.lead(BATCH).over(by_batch), F.lit(newest + 1))
    return batches.select(
        BATCH, "commits", "leases", "unknown_kind",
        (next_batch - F.col(BATCH) - 1).alias("missing_after"),
        F.coalesce(F.col("first_lease") < F.max("last_lease").over(earlier), F.lit(False)).alias("lease_fell"),
        F.coalesce(F.col("first") < F.max("last").over(earlier), F.lit(False)).alias("position_fell"),
    )
