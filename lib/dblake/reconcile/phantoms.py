"""Keys that are still known but gone: what a dump of a whole table did not return.

Part of the third step of reconcile. Rows can vanish without an event (a log that was lost, a partition that was
detached, rows deleted with logging switched off), and no upsert ever removes them. When a dump of a whole table ends, a
key is gone if its newest event is older than the dump, was visible to the dump's earliest chunk and left a row there:
had the row still been there, a chunk would have returned it, or an event would have told why not.

What is known is given; which table it comes from is left to the pipeline, ``DumpStart`` to capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dblake.core.position import Position
from dblake.core.window import Snapshot
from dblake.decode.columns import AFTER, BEFORE, DELETE, KEY, OP, PARTIAL, READ, UNDECODED
from dblake.events.schema import DUMP, EVENTS, ORIGIN, POSITION
from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    INCARNATION,
    LANDING,
    LAST_IN_TXN,
    LSN,
    SCHEMA_ID,
    SEQ,
    TABLE,
    TXID,
)
from dblake.reconcile.decode import KEY_TEXT, KNOWN, key_text_sql
from dblake.reconcile.windows import WINDOW, Ending

_ENDS = pa.schema([
    pa.field("w_table", pa.string()), pa.field(CHUNK_ID, pa.string()), pa.field(SCHEMA_ID, pa.string()),
    pa.field("end", pa.struct([(name, pa.int64()) for name in POSITION])),
    pa.field("began", pa.struct([(name, pa.int64()) for name in POSITION])),
    pa.field("truncated", pa.struct([(name, pa.int64()) for name in POSITION])), pa.field("emptied", pa.bool_()),
    pa.field("xmax", pa.int64()), pa.field("xip", pa.list_(pa.int64())),
    pa.field(BATCH, pa.int64()), pa.field(TXID, pa.int64()), LANDING.field(COMMITTED_AT),
])


_BEGINNING = ("began", "xmax", "xip", "truncated", "emptied")


def dump_ends(closing: Iterable[Ending], truncates: Mapping[str, Sequence[Position]]) -> pa.Table:
    """The ends of whole tables' dumps among closing windows, as rows; there may be none.

    ``truncates`` are all known ones of these tables: ``truncated`` is the last one before a dump, and a table was
    ``emptied`` if there was one while it was dumped.
    """
    rows = []
    for ending in closing:
        row, window, began = ending.row, ending.window, ending.end.began
        if window is None or began is None:
            continue
        seen = Snapshot.parse(began.snapshot) if began.snapshot else None
        end, ats = Position(row.incarnation, row.lsn, row.seq), truncates.get(row.table, ())
        truncated = max((at for at in ats if at < began.position), default=None)
        rows.append({
            "w_table": row.table, CHUNK_ID: row.chunk_id, SCHEMA_ID: window.schema_id,
            "end": asdict(end), "began": asdict(began.position),
            "truncated": asdict(truncated) if truncated else None,
            "emptied": any(began.position <= at < end for at in ats),
            "xmax": seen.xmax if seen else None, "xip": list(seen.xip) if seen else None,
            BATCH: row.batch, TXID: row.txid, COMMITTED_AT: row.committed_at,
        })
    return pa.Table.from_pylist(rows, schema=_ENDS)


def before(began: Position) -> Column:
    """True for rows of landing and for events older than a watermark, which stands alone in its transaction."""
    return (F.col(INCARNATION) < began.incarnation) | (
        (F.col(INCARNATION) == began.incarnation) & (F.col(LSN) < began.lsn)
    )


def known(events: DataFrame) -> DataFrame:
    """Events as KNOWN."""
    text = F.expr(key_text_sql(KEY)).alias(KEY_TEXT)
    return events.select(*(text if name == KEY_TEXT else F.col(name) for name in KNOWN.names))


def returned(chunk_keys: DataFrame, windows: DataFrame) -> DataFrame:
    """The keys of chunk rows as KNOWN, at their high watermarks; ``windows`` are those of ``windows_table``."""
    high = F.broadcast(windows.select(
        F.col(WINDOW).alias("w_window"), TABLE, INCARNATION, F.col("high_lsn").alias(LSN)
    ))
    nothing = {TXID: F.lit(None).cast("bigint"), KEY: F.lit(None).cast(EVENTS[KEY].dataType)}
    placed = chunk_keys.join(high, F.col(CHUNK_ID) == F.col("w_window"), "inner")
    return placed.withColumns({OP: F.lit(READ), SEQ: F.lit(0).cast("bigint"), **nothing}).select(*KNOWN.names)


def left(older: DataFrame, ends: DataFrame) -> DataFrame:
    """The rows that were left before each dump began, by ``chunk`` and key: what may have gone.

    ``older`` are KNOWN rows, of which those count that are older than their table's dump.
    """
    # Truncates have no key, and rows of before the table had one are none that could be known again.
    keyed = _at_an_end(older, ends).where((F.col("at") < F.col("began")) & F.col(KEY_TEXT).isNotNull())
    newest = keyed.groupBy("chunk", KEY_TEXT).agg(
        F.max_by(F.struct(OP, TXID, KEY), "at").alias("last"), F.max("at").alias("at")
    )
    seen = (F.col(f"last.{TXID}") < F.col("xmax")) & ~F.array_contains("xip", F.col(f"last.{TXID}"))
    # Transaction numbers of an earlier incarnation may be another server's, and its transactions are over.
    seen = seen | (F.col(f"at.{INCARNATION}") < F.col(f"began.{INCARNATION}"))
    return (
        newest.join(F.broadcast(ends.select(F.col(CHUNK_ID).alias("chunk"), *_BEGINNING)), "chunk")
        .where(~F.col("emptied") & (F.col("truncated").isNull() | (F.col("at") > F.col("truncated"))))
        .where((F.col(f"last.{OP}") != DELETE) & (F.col("xmax").isNull() | F.col(f"last.{TXID}").isNull() | seen))
        .select("chunk", KEY_TEXT, F.col(f"last.{KEY}").alias(KEY), F.col("at").alias("last_at"))
    )


def phantoms(left: DataFrame, since: DataFrame, ends: DataFrame, *, few: bool) -> DataFrame:
    """EVENTS that delete what is gone, at the ends' positions.

    ``since`` are KNOWN rows: of them those count that the log or a chunk told after their table's dump began and before
    it ended. ``left`` are ``few`` if every task can hold them all.
    """
    told = _at_an_end(since, ends).where(F.col("at") >= F.col("began"))
    keys = left.select("chunk", KEY_TEXT)
    # The other way round all that was told would be sent about, to find it among the few.
    there = told.join(F.broadcast(keys) if few else keys, ["chunk", KEY_TEXT], "left_semi").select("chunk", KEY_TEXT)
    gone = left.join(there.distinct(), ["chunk", KEY_TEXT], "left_anti")
    gone = gone.join(F.broadcast(ends.withColumnRenamed(CHUNK_ID, "chunk")), "chunk")
    # What an earlier dump's end has removed is not there for a later one to remove, unless it came back in between.
    removed = F.lag("end").over(Window.partitionBy("w_table", KEY_TEXT).orderBy("end"))
    gone = gone.withColumn("removed", removed).where(F.col("removed").isNull() | (F.col("last_at") > F.col("removed")))
    # Maps cannot be ordered by.
    order = Window.partitionBy("chunk").orderBy(F.array_sort(F.map_entries(KEY)))
    nothing = {name: F.lit(None).cast(EVENTS[name].dataType) for name in (BEFORE, AFTER, UNDECODED)}
    return gone.withColumn(SEQ, ((F.row_number().over(order) - 1) * 2).cast("bigint")).select(
        F.col("w_table").alias(TABLE), KEY, F.lit(DELETE).alias(OP), F.col(f"end.{INCARNATION}").alias(INCARNATION),
        F.col(f"end.{LSN}").alias(LSN), SEQ, SCHEMA_ID, TXID, COMMITTED_AT, BATCH, F.col("chunk").alias(CHUNK_ID),
        F.lit(False).alias(LAST_IN_TXN), F.lit(False).alias(PARTIAL), F.lit(DUMP).alias(ORIGIN),
        *(value.alias(name) for name, value in nothing.items()),
    ).select(*EVENTS.names)


def _at_an_end(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """KNOWN rows, once for each dump of their table that ended after them, with ``chunk``, ``at`` and ``began``."""
    which = F.broadcast(ends.select("w_table", F.col(CHUNK_ID).alias("chunk"), "began", "end"))
    placed = rows.withColumn("at", F.struct(*POSITION))
    return placed.join(which, (F.col(TABLE) == F.col("w_table")) & (F.col("at") < F.col("end")), "inner")
