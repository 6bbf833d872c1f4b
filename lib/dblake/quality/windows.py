"""What the ledger of chunk windows promises: every chunk is in it once, closed or discarded for a reason, and counted.

Two frames: the low and high watermarks of landing beside what the ledger says of their chunks, and the ledger's lines
beside what events hold of them. Which batches are looked at is the caller's to say.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.landing.columns import BATCH, CHUNK_ID, HIGH, KIND, LEASE_EPOCH, LOW, TABLE
from dblake.landing.control import CLOSED, DISCARDED
from dblake.quality.suite import Expectation, at_least, equal, never, not_null, one_of, unique
from dblake.reconcile.ledger import GAP, written

_CHUNK = (CHUNK_ID, TABLE, LEASE_EPOCH)

WATERMARKS_EXPECTED: tuple[Expectation, ...] = (
    not_null(CHUNK_ID, "every low and high watermark is a chunk's"),
    never("untold", "a window that has ended, by its high watermark or with its lease, is in the ledger"),
)

LEDGER_EXPECTED: tuple[Expectation, ...] = (
    not_null("status", "every window has a status"),
    one_of("status", [CLOSED, DISCARDED, GAP], "a window is closed or discarded; beside them there are gaps"),
    never("unexplained", "a window is discarded, and a gap noted, for a named reason"),
    never("nameless", "a closed or discarded window is a chunk's of a table"),
    unique(_CHUNK, "a chunk is in the ledger once"),
    never("inside_out", "a closed window's high watermark comes after its low one"),
    equal("rows_read", "rows_accounted", "all rows that a chunk read are emitted, dropped or filled"),
    at_least("rows_dropped", 0, "a window drops no fewer than no rows"),
    equal("rows_emitted", "reads_in_events", "events hold the rows that a window emitted"),
    equal("rows_filled", "fills_in_events", "events hold the fills of a window"),
    equal("rows_removed", "removals_in_events", "events hold the deletes of a dump's end"),
)


def watermarks(landing: DataFrame, ledger: DataFrame, since: int, upto: int) -> DataFrame:
    """A row for each low and high watermark after batch ``since`` up to ``upto``, to which the ledger reaches.

    Of the lease that held at ``since`` all low ones, if another lease has followed: what was open then must have ended.
    """
    marks = landing.where(F.col(KIND).isin(LOW, HIGH) & (F.col(BATCH) <= upto))
    then, now = _lease(landing, since, since), _lease(landing, since + 1, upto)
    fresh = F.col(BATCH) > since
    if then is not None and now is not None and then < now:
        fresh = fresh | ((F.col(LEASE_EPOCH) == then) & (F.col(KIND) == LOW))
    told = ledger.select(*_CHUNK).distinct().withColumn("told", F.lit(True))
    ended = (F.col(KIND) == HIGH) | (F.col(LEASE_EPOCH) < F.lit(now))
    return marks.where(fresh).select(BATCH, KIND, *_CHUNK).join(told, list(_CHUNK), "left").withColumn(
        "untold", F.coalesce(ended, F.lit(False)) & F.col("told").isNull()
    )


def ledger_lines(ledger: DataFrame, events: DataFrame, since: int, upto: int, *, consolidated: int) -> DataFrame:
    """A row for each line of the ledger after batch ``since`` up to ``upto``, to which events reach.

    Of batches up to ``consolidated`` events may have been removed, so those of a window cannot be counted any more.
    """
    span = F.col(BATCH).between(since + 1, upto)
    dumped = written(events.where(span & F.col(CHUNK_ID).isNotNull())).select(
        F.col(CHUNK_ID).alias("e_chunk"), F.col(BATCH).alias("e_batch"), "rows", "fills", "removed"
    )
    counted = F.col(BATCH) > consolidated
    of_chunk = (F.col(CHUNK_ID) == F.col("e_chunk")) & (F.col(BATCH) == F.col("e_batch"))
    status, reason = F.col("status"), F.col("reason")
    counts = [F.when(counted, F.coalesce(F.col(of), F.lit(0))).alias(name) for of, name in (
        ("rows", "reads_in_events"), ("fills", "fills_in_events"), ("removed", "removals_in_events"),
    )]
    return ledger.where(span).join(dumped, of_chunk, "left").select(
        BATCH, *_CHUNK, "status", "rows_read", "rows_emitted", "rows_dropped", "rows_filled", "rows_removed",
        (F.col("rows_emitted") + F.col("rows_dropped") + F.col("rows_filled")).alias("rows_accounted"), *counts,
        (status.isin(DISCARDED, GAP) & (F.coalesce(reason, F.lit("")) == "")).alias("unexplained"),
        ((status != GAP) & (F.col(CHUNK_ID).isNull() | F.col(TABLE).isNull())).alias("nameless"),
        ((status == CLOSED) & ~F.coalesce(F.col("low_lsn") < F.col("high_lsn"), F.lit(False))).alias("inside_out"),
    )


def _lease(landing: DataFrame, first: int, last: int) -> int | None:
    row = landing.where(F.col(BATCH).between(first, last)).agg(F.max(LEASE_EPOCH)).first()
    return row[0] if row else None
