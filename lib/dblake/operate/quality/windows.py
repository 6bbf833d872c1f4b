"""Invariants of the window ledger: every chunk is recorded once, closed or discarded for a reason, its rows counted.

Place: between landing, ledger and events, and ``quality.run``. Builds two frames: landing's low and high watermarks
with the ledger's entry for their chunk, and the ledger's entries with the counts that events hold of them. Which
batches to read is the caller's decision.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.base.core.op import Op
from dblake.base.lake.incarnations import GAP, MOVED
from dblake.landing.columns import BATCH, CHUNK_ID, HIGH, KIND, LEASE_EPOCH, LOW, TABLE
from dblake.landing.control import CLOSED, DISCARDED
from dblake.operate.quality.suite import (
    Expectation,
    expect_at_least,
    expect_equal,
    expect_no_violation,
    expect_not_null,
    expect_one_of,
    expect_unique,
)

_CHUNK = (CHUNK_ID, TABLE, LEASE_EPOCH)

WATERMARK_EXPECTATIONS: tuple[Expectation, ...] = (
    expect_not_null(CHUNK_ID, "every low and high watermark belongs to a chunk"),
    expect_no_violation("unrecorded", "a window that ended, by its high watermark or with its lease, is in the ledger"),
)

LEDGER_EXPECTATIONS: tuple[Expectation, ...] = (
    expect_not_null("status", "every entry has a status"),
    expect_one_of(
        "status", [CLOSED, DISCARDED, GAP, MOVED], "an entry is a closed or discarded window, a gap or a move"
    ),
    expect_no_violation("unexplained", "a discarded window, a gap and a move have a reason"),
    expect_no_violation("nameless", "a closed or discarded window names its chunk and table"),
    expect_unique(_CHUNK, "a chunk is in the ledger once"),
    expect_no_violation("inverted", "a closed window's high watermark comes after its low watermark"),
    expect_equal("rows_read", "rows_accounted", "every row that a chunk read is emitted, dropped or filled"),
    expect_at_least("rows_dropped", 0, "the number of dropped rows is not negative"),
    expect_equal("rows_emitted", "reads_in_events", "events hold the rows that a window emitted"),
    expect_equal("rows_filled", "fills_in_events", "events hold the fills of a window"),
    expect_equal("rows_removed", "removals_in_events", "events hold the deletes of a dump's end"),
)


def evaluate_watermarks(landing: DataFrame, ledger: DataFrame, since: int, upto: int) -> DataFrame:
    """Return one row per low and high watermark after batch ``since`` up to ``upto``, which the ledger has reached.

    If another lease follows the one held at ``since``, all low watermarks of that earlier lease are included: every
    window that was open then must have ended.

    Requires of landing: batch, kind, chunk_id, table, lease_epoch; of the ledger: chunk_id, table, lease_epoch.
    Returns: batch, kind, chunk_id, table, lease_epoch, recorded, and the boolean unrecorded.
    """
    marks = landing.where(F.col(KIND).isin(LOW, HIGH) & (F.col(BATCH) <= upto))
    earlier_lease, newest_lease = _max_lease(landing, since, since), _max_lease(landing, since + 1, upto)
    is_included = F.col(BATCH) > since
    if earlier_lease is not None and newest_lease is not None and earlier_lease < newest_lease:
        is_included = is_included | ((F.col(LEASE_EPOCH) == earlier_lease) & (F.col(KIND) == LOW))
    recorded = ledger.select(*_CHUNK).distinct().withColumn("recorded", F.lit(True))
    has_ended = (F.col(KIND) == HIGH) | (F.col(LEASE_EPOCH) < F.lit(newest_lease))
    return marks.where(is_included).select(BATCH, KIND, *_CHUNK).join(recorded, list(_CHUNK), "left").withColumn(
        "unrecorded", F.coalesce(has_ended, F.lit(False)) & F.col("recorded").isNull()
    )


def _count_written(events: DataFrame) -> DataFrame:
    """Return ``chunk_id, batch, rows, fills, removed`` of dump events; requires ``chunk_id, batch, op``."""
    return events.groupBy("chunk_id", "batch").agg(
        F.count_if(F.col("op") == Op.READ).alias("rows"), F.count_if(F.col("op") == Op.FILL).alias("fills"),
        F.count_if(F.col("op") == Op.DELETE).alias("removed"),
    )


def evaluate_ledger(ledger: DataFrame, events: DataFrame, since: int, upto: int, *, consolidated: int) -> DataFrame:
    """Return one row per entry of the ledger after batch ``since`` up to ``upto``, which events have reached.

    Maintenance may have removed events of batches up to ``consolidated``, so the counts in events are NULL there.

    Requires of the ledger: the columns of ``events.schema.WINDOWS``; of events: batch and the columns that
    ``_count_written`` requires. Returns: batch, chunk_id, table, lease_epoch, status, the row counts,
    rows_accounted, reads_in_events, fills_in_events, removals_in_events, and the booleans unexplained, nameless,
    inverted.
    """
    span = F.col(BATCH).between(since + 1, upto)
    dumped = _count_written(events.where(span & F.col(CHUNK_ID).isNotNull())).select(
        F.col(CHUNK_ID).alias("e_chunk"), F.col(BATCH).alias("e_batch"), "rows", "fills", "removed"
    )
    is_countable = F.col(BATCH) > consolidated
    is_same_chunk = (F.col(CHUNK_ID) == F.col("e_chunk")) & (F.col(BATCH) == F.col("e_batch"))
    status, reason = F.col("status"), F.col("reason")
    counts = [F.when(is_countable, F.coalesce(F.col(of), F.lit(0))).alias(name) for of, name in (
        ("rows", "reads_in_events"), ("fills", "fills_in_events"), ("removed", "removals_in_events"),
    )]
    return ledger.where(span).join(dumped, is_same_chunk, "left").select(
        BATCH, *_CHUNK, "status", "rows_read", "rows_emitted", "rows_dropped", "rows_filled", "rows_removed",
        (F.col("rows_emitted") + F.col("rows_dropped") + F.col("rows_filled")).alias("rows_accounted"), *counts,
        (status.isin(DISCARDED, GAP, MOVED) & (F.coalesce(reason, F.lit("")) == "")).alias("unexplained"),
        (~status.isin(GAP, MOVED) & (F.col(CHUNK_ID).isNull() | F.col(TABLE).isNull())).alias("nameless"),
        ((status == CLOSED) & ~F.coalesce(F.col("low_lsn") < F.col("high_lsn"), F.lit(False))).alias("inverted"),
    )


def _max_lease(landing: DataFrame, first: int, last: int) -> int | None:
    row = landing.where(F.col(BATCH).between(first, last)).agg(F.max(LEASE_EPOCH)).first()
    return row[0] if row else None
