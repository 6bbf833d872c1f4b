"""What landing promises: batches without a hole, each one commit of one lease, the log in its order.

Makes of landing, whose payloads are not read, one row for each batch. Which batches those are, and up to which landing
says it is written, is the caller's to find. A batch at the lower end has nothing before it to be compared with, so
that what retention has removed is not missed.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dblake.events.schema import POSITION
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
    MESSAGE,
    ROW,
    SCHEMA,
    TRUNCATE,
)
from dblake.quality.suite import Expectation, never, not_null, one_of

_OF_LOG = (ROW, TRUNCATE, LOW, HIGH, HEARTBEAT, MESSAGE, DDL)
"""Kinds that stand in the log's order. A schema stands where a chunk first showed it, a chunk's rows nowhere."""

EXPECTED: tuple[Expectation, ...] = (
    not_null(BATCH, "every row of landing has a batch"),
    one_of("missing_after", [0], "batches are numbered without a hole, up to the newest commit"),
    one_of("commits", [1], "a batch is one commit"),
    one_of("leases", [1], "a batch is of one lease epoch"),
    never("lease_fell", "lease epochs never fall from batch to batch"),
    never("position_fell", "the log's positions never fall from batch to batch"),
    never("unknown_kind", "every row of landing is of a kind there is"),
)


def batches(landing: DataFrame, newest: int) -> DataFrame:
    """A row for each batch of landing; ``newest`` is what its newest commit says it is."""
    of_log = F.col(KIND).isin(*_OF_LOG)
    place = F.when(of_log, F.struct(*POSITION))
    found = landing.groupBy(BATCH).agg(
        F.count_distinct(LANDED_AT).alias("commits"), F.count_distinct(LEASE_EPOCH).alias("leases"),
        F.min(LEASE_EPOCH).alias("first_lease"), F.max(LEASE_EPOCH).alias("last_lease"),
        F.min(place).alias("first"), F.max(place).alias("last"),
        F.bool_or(~F.coalesce(F.col(KIND).isin(*_OF_LOG, SCHEMA, CHUNK), F.lit(False))).alias("unknown_kind"),
    )
    # One partition: a row for each batch is little.
    order = Window.orderBy(BATCH)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    following = F.coalesce(F.lead(BATCH).over(order), F.lit(newest + 1))
    return found.select(
        BATCH, "commits", "leases", "unknown_kind",
        (following - F.col(BATCH) - 1).alias("missing_after"),
        F.coalesce(F.col("first_lease") < F.max("last_lease").over(before), F.lit(False)).alias("lease_fell"),
        F.coalesce(F.col("first") < F.max("last").over(before), F.lit(False)).alias("position_fell"),
    )
