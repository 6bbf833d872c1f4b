"""Delete phantoms: keys that earlier events hold and that a dump of the whole table did not return.

Place: end of a micro-batch in which such a dump ends. It is an addition to DBLog, which assumes that every change is in
the log. Rows can vanish without an event (lost log, a detached partition, rows deleted with logging disabled), and no
upsert removes them. Guarantee: a key is deleted exactly if its newest event precedes the dump, is not a delete, and was
visible to the dump's first chunk. Such a row no longer exists: a chunk would have returned it, or a later event would
explain its absence. A dump of given keys that removes what is gone deletes only those of them; one of a whole table
that lacks more keys than it may delete (``ChunkEnd.withholds``) deletes none, because it may have read too few.

The keys come as KNOWN rows; ``known_keys`` decides whether it reads them from state or from events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from dblake.core.position import Position
from dblake.core.window import Snapshot
from dblake.decode.columns import AFTER, BEFORE, DELETE, KEY, OP, PARTIAL, UNDECODED
from dblake.decode.row_keys import KEY_TEXT, key_text_of, key_text_sql
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
    pa.field("xmax", pa.int64()), pa.field("xip", pa.list_(pa.int64())), pa.field("only", pa.list_(pa.string())),
    pa.field(BATCH, pa.int64()), pa.field(TXID, pa.int64()), LANDING.field(COMMITTED_AT),
])

_BEGINNING = ("began", "xmax", "xip", "truncated", "emptied", "only")


def dump_ends(closing: Iterable[Ending], truncates: Mapping[str, Sequence[Position]]) -> pa.Table:
    """Return one row for each dump that ends among these windows and deletes what it did not return; possibly none.

    ``truncates`` maps a table to the positions of all its truncates. In the result ``truncated`` is the last one before
    the dump began, and ``emptied`` is true if one lies between the dump's begin and end. ``only`` are the keys of a
    dump of given keys, as ``key_text``; null for a whole table.
    """
    rows = []
    for ending in closing:
        row, window, began = ending.row, ending.window, ending.end.dump_start
        if window is None or began is None:
            continue
        seen, removes = Snapshot.parse(began.snapshot) if began.snapshot else None, ending.end.removes
        end, of_table = Position(row.incarnation, row.lsn, row.seq), truncates.get(row.table, ())
        truncated = max((at for at in of_table if at < began.position), default=None)
        rows.append({
            "w_table": row.table, CHUNK_ID: row.chunk_id, SCHEMA_ID: window.schema_id,
            "end": asdict(end), "began": asdict(began.position),
            "truncated": asdict(truncated) if truncated else None,
            "emptied": any(began.position <= at < end for at in of_table),
            "xmax": seen.xmax if seen else None, "xip": list(seen.xip) if seen else None,
            "only": [key_text_of(list(key)) for key in removes.keys] if removes else None,
            BATCH: row.batch, TXID: row.txid, COMMITTED_AT: row.committed_at,
        })
    return pa.Table.from_pylist(rows, schema=_ENDS)


def as_known_keys(events: DataFrame) -> DataFrame:
    """Return EVENTS as KNOWN rows."""
    text = F.expr(key_text_sql(KEY)).alias(KEY_TEXT)
    return events.select(*(text if name == KEY_TEXT else F.col(name) for name in KNOWN.names))


def candidate_phantoms(known: DataFrame, ends: DataFrame) -> DataFrame:
    """Return the keys that had a row before each dump began: ``chunk, key_text, key, last_at``.

    ``known`` are KNOWN rows, of which those older than their table's dump count. NULL ``op`` marks a key that a chunk
    returned and whose row was evicted. ``ends`` are those of ``dump_ends``.
    """
    # Truncates have no key. Rows from before the table had a key cannot be identified.
    is_row = F.col(KEY_TEXT).isNotNull() & F.col(OP).isNotNull()
    keyed = _with_dump_end(known.where(is_row), ends).where(F.col("at") < F.col("began"))
    # A state row lacks its event's transaction id.
    order = F.struct(F.col("at"), F.col(TXID).isNotNull())
    newest = keyed.groupBy("chunk", KEY_TEXT).agg(
        F.max_by(F.struct(OP, TXID, KEY), order).alias("last"), F.max("at").alias("at")
    )
    seen = (F.col(f"last.{TXID}") < F.col("xmax")) & ~F.array_contains("xip", F.col(f"last.{TXID}"))
    # Transaction ids of an earlier incarnation may be another server's; all its transactions have ended.
    seen = seen | (F.col(f"at.{INCARNATION}") < F.col(f"began.{INCARNATION}"))
    return (
        newest.join(F.broadcast(ends.select(F.col(CHUNK_ID).alias("chunk"), *_BEGINNING)), "chunk")
        .where(F.col("only").isNull() | F.array_contains("only", F.col(KEY_TEXT)))
        .where(~F.col("emptied") & (F.col("truncated").isNull() | (F.col("at") > F.col("truncated"))))
        .where((F.col(f"last.{OP}") != DELETE) & (F.col("xmax").isNull() | F.col(f"last.{TXID}").isNull() | seen))
        .select("chunk", KEY_TEXT, F.col(f"last.{KEY}").alias(KEY), F.col("at").alias("last_at"))
    )


def absent_keys(candidates: DataFrame, known: DataFrame, ends: DataFrame, *, few: bool) -> DataFrame:
    """Return the candidates that no longer exist.

    ``known`` are KNOWN rows, of which those between their table's dump's begin and end count: the key has an event, or
    a chunk returned it. ``candidates`` are those of ``candidate_phantoms``; set ``few`` if every task can hold them.
    """
    later = _with_dump_end(known, ends).where(F.col("at") >= F.col("began"))
    keys = candidates.select("chunk", KEY_TEXT)
    # The few candidates are broadcast, not the many later rows.
    present = later.join(F.broadcast(keys) if few else keys, ["chunk", KEY_TEXT], "left_semi").select("chunk", KEY_TEXT)
    return candidates.join(present.distinct(), ["chunk", KEY_TEXT], "left_anti")


def phantoms(gone: DataFrame, ends: DataFrame) -> DataFrame:
    """Return EVENTS rows that delete the ``absent_keys``, at the positions of the ends of their dumps."""
    gone = gone.join(F.broadcast(ends.withColumnRenamed(CHUNK_ID, "chunk")), "chunk")
    # A later dump deletes a key that an earlier one deleted only if a row of it was created in between.
    removed = F.lag("end").over(W.partitionBy("w_table", KEY_TEXT).orderBy("end"))
    gone = gone.withColumn("removed", removed).where(F.col("removed").isNull() | (F.col("last_at") > F.col("removed")))
    # Spark cannot order by maps.
    order = W.partitionBy("chunk").orderBy(F.array_sort(F.map_entries(KEY)))
    nulls = {name: F.lit(None).cast(EVENTS[name].dataType) for name in (BEFORE, AFTER, UNDECODED)}
    return gone.withColumn(SEQ, ((F.row_number().over(order) - 1) * 2).cast("bigint")).select(
        F.col("w_table").alias(TABLE), KEY, F.lit(DELETE).alias(OP), F.col(f"end.{INCARNATION}").alias(INCARNATION),
        F.col(f"end.{LSN}").alias(LSN), SEQ, SCHEMA_ID, TXID, COMMITTED_AT, BATCH, F.col("chunk").alias(CHUNK_ID),
        F.lit(False).alias(LAST_IN_TXN), F.lit(False).alias(PARTIAL), F.lit(DUMP).alias(ORIGIN),
        *(value.alias(name) for name, value in nulls.items()),
    ).select(*EVENTS.names)


def _with_dump_end(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """Return KNOWN rows once for each dump of their table that ended after them, with ``chunk, at, began``."""
    dumps = F.broadcast(ends.select("w_table", F.col(CHUNK_ID).alias("chunk"), "began", "end"))
    positioned = rows.withColumn("at", F.struct(*POSITION))
    return positioned.join(dumps, (F.col(TABLE) == F.col("w_table")) & (F.col("at") < F.col("end")), "inner")
