"""Keys that are still known but gone: what a dump of a whole table did not return.

Part of the third step of reconcile. Rows can vanish without an event (a log that was lost, a partition that was
detached, rows deleted with logging switched off), and no upsert ever removes them. When a dump of a whole table ends, a
key is gone if its newest event is older than the dump, was visible to the dump's earliest chunk and left a row there:
had the row still been there, a chunk would have returned it, or an event would have told why not.

Events are given; which table they come from is left to the pipeline, ``DumpStart`` to capture.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, functions as F

from dblake.core.position import Position
from dblake.core.window import Snapshot
from dblake.decode.columns import AFTER, BEFORE, DELETE, KEY, OP, PARTIAL, TRUNCATE, UNDECODED
from dblake.events.schema import DUMP, EVENTS, ORIGIN, POSITION
from dblake.landing.columns import (
    BATCH, CHUNK_ID, COMMITTED_AT, INCARNATION, LANDING, LAST_IN_TXN, LSN, SCHEMA_ID, SEQ, TABLE, TXID,
)
from dblake.reconcile.windows import Ending

_ENDS = pa.schema([
    pa.field("w_table", pa.string()), pa.field(CHUNK_ID, pa.string()), pa.field(SCHEMA_ID, pa.string()),
    pa.field("end", pa.struct([(name, pa.int64()) for name in POSITION])),
    pa.field("began", pa.struct([(name, pa.int64()) for name in POSITION])),
    pa.field("xmax", pa.int64()), pa.field("xip", pa.list_(pa.int64())),
    pa.field(BATCH, pa.int64()), pa.field(TXID, pa.int64()), LANDING.field(COMMITTED_AT),
])


def dump_ends(closing: Iterable[Ending]) -> pa.Table:
    """The ends of whole tables' dumps among closing windows, as rows for ``phantoms``; there may be none."""
    rows = []
    for ending in closing:
        row, window, began = ending.row, ending.window, ending.end.began
        if window is None or began is None:
            continue
        seen = Snapshot.parse(began.snapshot) if began.snapshot else None
        rows.append({
            "w_table": row.table, CHUNK_ID: row.chunk_id, SCHEMA_ID: window.schema_id,
            "end": {INCARNATION: row.incarnation, LSN: row.lsn, SEQ: row.seq},
            "began": {INCARNATION: began.incarnation, LSN: began.lsn, SEQ: began.seq},
            "xmax": seen.xmax if seen else None, "xip": list(seen.xip) if seen else None,
            BATCH: row.batch, TXID: row.txid, COMMITTED_AT: row.committed_at,
        })
    return pa.Table.from_pylist(rows, schema=_ENDS)


def before(began: Position) -> Column:
    """True for rows of landing and for events older than a watermark, which stands alone in its transaction."""
    return (F.col(INCARNATION) < began.incarnation) | (
        (F.col(INCARNATION) == began.incarnation) & (F.col(LSN) < began.lsn)
    )


def phantoms(events: DataFrame, ends: DataFrame) -> DataFrame:
    """EVENTS that delete what is gone, at the ends' positions. ``events`` are all there are of the tables by then."""
    known = events.select(TABLE, OP, KEY, TXID, F.struct(*POSITION).alias("at")).join(
        F.broadcast(ends.select("w_table", F.col(CHUNK_ID).alias("chunk"), "end")),
        (F.col(TABLE) == F.col("w_table")) & (F.col("at") < F.col("end")), "inner",
    )
    truncated = known.where(F.col(OP) == TRUNCATE).groupBy("chunk").agg(F.max("at").alias("truncated"))
    newest = (
        known.where(F.col(OP) != TRUNCATE)
        # Maps are no keys to group by; the entries of two equal keys may differ in order.
        .groupBy("chunk", F.array_sort(F.map_entries(KEY)).alias("key_entries"))
        .agg(F.max_by(F.struct(OP, TXID, KEY), "at").alias("last"), F.max("at").alias("at"))
        .join(F.broadcast(truncated), "chunk", "left")
        .where(F.col("truncated").isNull() | (F.col("at") > F.col("truncated")))
        .where(F.col(f"last.{OP}") != DELETE)
    )
    ended = ends.withColumnRenamed(CHUNK_ID, "chunk").withColumnsRenamed({TXID: "end_txid"})
    number = F.row_number().over(Window.partitionBy("chunk").orderBy("key_entries")) - 1
    seen = (F.col(f"last.{TXID}") < F.col("xmax")) & ~F.array_contains("xip", F.col(f"last.{TXID}"))
    gone = newest.join(F.broadcast(ended), "chunk").where(
        (F.col("at") < F.col("began")) & (F.col("xmax").isNull() | F.col(f"last.{TXID}").isNull() | seen)
    )
    nothing = {name: F.lit(None).cast(EVENTS[name].dataType) for name in (BEFORE, AFTER, UNDECODED)}
    return gone.select(
        F.col("w_table").alias(TABLE), F.col(f"last.{KEY}").alias(KEY), F.lit(DELETE).alias(OP),
        F.col(f"end.{INCARNATION}").alias(INCARNATION), F.col(f"end.{LSN}").alias(LSN),
        (number * 2).cast("bigint").alias(SEQ), SCHEMA_ID, F.col("end_txid").alias(TXID), COMMITTED_AT, BATCH,
        F.col("chunk").alias(CHUNK_ID), F.lit(False).alias(LAST_IN_TXN), F.lit(False).alias(PARTIAL),
        F.lit(DUMP).alias(ORIGIN), *(value.alias(name) for name, value in nothing.items()),
    ).select(*EVENTS.names)
