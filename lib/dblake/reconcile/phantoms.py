"""Keys that are known but gone: what a dump of a whole table did not return.

An addition to DBLog, which assumes that every change is in the log. Rows can vanish without an event (a log that was
lost, a partition that was detached, rows deleted with logging switched off), and no upsert ever removes them. When a
dump of a whole table ends, a key is gone if its newest event is older than the dump, was visible to the dump's first
chunk and left a row: had the row still been there, a chunk would have returned it, or a later event would explain its
absence.

What is known is given, as KNOWN rows; ``known_keys`` decides whether it comes from state or from events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dblake.core.position import Position
from dblake.core.window import Snapshot
from dblake.decode.columns import AFTER, BEFORE, DELETE, KEY, OP, PARTIAL, UNDECODED
from dblake.decode.row_keys import KEY_TEXT, key_text_sql
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
from dblake.reconcile.keys import KNOWN
from dblake.reconcile.windows import Ending

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
    """Return the ends of whole tables' dumps among closing windows, as rows; there may be none.

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


def older_than(began: Position) -> Column:
    """Return a condition on ``incarnation, lsn``: older than a watermark, which is alone in its transaction."""
    return (F.col(INCARNATION) < began.incarnation) | (
        (F.col(INCARNATION) == began.incarnation) & (F.col(LSN) < began.lsn)
    )


def as_known_keys(events: DataFrame) -> DataFrame:
    """Return EVENTS as KNOWN rows."""
    text = F.expr(key_text_sql(KEY)).alias(KEY_TEXT)
    return events.select(*(text if name == KEY_TEXT else F.col(name) for name in KNOWN.names))


def candidate_phantoms(known: DataFrame, ends: DataFrame) -> DataFrame:
    """Return the keys that had a row before each dump began: ``chunk, key_text, key, last_at``.

    ``known`` are KNOWN rows, of which those older than their table's dump count; a null ``op`` means that a
    chunk returned the key, and that the row was evicted. ``ends`` are those of ``dump_ends``.
    """
    # Truncates have no key; nor have rows from before the table had one, which cannot be recognized again.
    is_row = F.col(KEY_TEXT).isNotNull() & F.col(OP).isNotNull()
    keyed = _at_an_end(known.where(is_row), ends).where(F.col("at") < F.col("began"))
    # Of a state row and its event only the event has the transaction.
    order = F.struct(F.col("at"), F.col(TXID).isNotNull())
    newest = keyed.groupBy("chunk", KEY_TEXT).agg(
        F.max_by(F.struct(OP, TXID, KEY), order).alias("last"), F.max("at").alias("at")
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


def phantoms(candidates: DataFrame, known: DataFrame, ends: DataFrame, *, few: bool) -> DataFrame:
    """Return EVENTS that delete the candidates which are gone, at the ends' positions.

    ``known`` are KNOWN rows; those from the beginning of their table's dump to its end count: the key has an event, or
    a chunk returned it. ``candidates`` are ``few`` if every task can hold them all.
    """
    later = _at_an_end(known, ends).where(F.col("at") >= F.col("began"))
    keys = candidates.select("chunk", KEY_TEXT)
    # The other way round all later rows would be shipped to every task, to find the few candidates among them.
    there = later.join(F.broadcast(keys) if few else keys, ["chunk", KEY_TEXT], "left_semi").select("chunk", KEY_TEXT)
    gone = candidates.join(there.distinct(), ["chunk", KEY_TEXT], "left_anti")
    gone = gone.join(F.broadcast(ends.withColumnRenamed(CHUNK_ID, "chunk")), "chunk")
    # What an earlier dump's end removed is not there for a later one to remove, unless it came back in between.
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
    """Return KNOWN rows once for each dump of their table that ended after them, with ``chunk, at, began``."""
    which = F.broadcast(ends.select("w_table", F.col(CHUNK_ID).alias("chunk"), "began", "end"))
    placed = rows.withColumn("at", F.struct(*POSITION))
    return placed.join(which, (F.col(TABLE) == F.col("w_table")) & (F.col("at") < F.col("end")), "inner")
