"""The events table's columns. See ``decode.columns`` for what the images mean.

Ordered by ``(incarnation, lsn, seq)``; no two events share a position. ``origin`` tells whether the log or a dump
gave the event. ``op`` adds to decoding's letters ``f``, a fill: only the columns it supplies, which no event of the
key in the chunk's window carried. A ``d`` of a dump is a key that was known and that a dump of the whole table did not
return. A dumped row stands at its high watermark: ``lsn`` is the watermark's, ``seq`` the row's number in its
chunk · 2, ``batch`` the landing batch that holds the high watermark.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

ORIGIN, LOG, DUMP = "origin", "log", "dump"
POSITION = ("incarnation", "lsn", "seq")

_IMAGE = MapType(StringType(), StringType(), valueContainsNull=True)

EVENTS = StructType(
    [
        StructField("incarnation", LongType()),
        StructField("lsn", LongType()),
        StructField("seq", LongType()),
        StructField("table", StringType()),
        StructField("op", StringType()),
        StructField("key", _IMAGE),
        StructField("before", _IMAGE),
        StructField("after", _IMAGE),
        StructField("schema_id", StringType()),
        StructField("txid", LongType()),
        StructField("committed_at", TimestampType()),
        StructField("last_in_txn", BooleanType()),
        StructField(ORIGIN, StringType()),
        StructField("chunk_id", StringType()),
        StructField("batch", LongType()),
        StructField("partial", BooleanType()),
        StructField("undecoded", ArrayType(StringType())),
    ]
)

#: The ledger of chunk windows. ``schema_id`` is what the chunk was read under, ``began`` where a dump of the whole
#: table began that ended with this chunk.
WINDOWS = StructType(
    [
        StructField("chunk_id", StringType()),
        StructField("dump_id", StringType()),
        StructField("table", StringType()),
        StructField("lease_epoch", LongType()),
        StructField("incarnation", LongType()),
        StructField("low_lsn", LongType()),
        StructField("high_lsn", LongType()),
        StructField("rows_read", LongType()),
        StructField("rows_emitted", LongType()),
        StructField("rows_dropped", LongType()),
        StructField("rows_filled", LongType()),
        StructField("rows_removed", LongType()),
        StructField("schema_id", StringType()),
        StructField("status", StringType()),
        StructField("reason", StringType()),
        StructField("closed_at", TimestampType()),
        StructField("began", StructType([StructField(name, LongType()) for name in POSITION])),
        StructField("batch", LongType()),
    ]
)
