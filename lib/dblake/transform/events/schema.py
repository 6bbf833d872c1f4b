"""The columns of the events table and of the window ledger, as Spark has them; ``decode.columns`` defines the images.

Place: between reconcile, which writes both tables, and all readers. Guarantee: events are ordered by ``(incarnation,
lsn, seq)``, and no two share a position. ``origin`` is ``log`` or ``dump``. ``op`` is a letter of ``decode.columns``
or ``f``, a fill: its image has only the columns that no event of the key in the chunk's window carried. A ``d`` with
origin ``dump`` deletes a key that earlier events hold and that a dump of the whole table did not return. A dumped row
has the position of its high watermark: ``lsn`` is the watermark's, ``seq`` is twice the row's number in its chunk, and
``batch`` is the landing batch of the high watermark.
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

from dblake.base.core.position import Position
from dblake.transform.events.files import ORIGIN

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
        StructField("key_before", _IMAGE),
    ]
)

#: The window ledger. The chunk was read under the schema ``schema_id``. ``began`` is the position at which a dump of
#: the whole table began; only the dump's last chunk has it.
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
        StructField("began", StructType([StructField(name, LongType()) for name in Position.COLUMNS])),
        StructField("batch", LongType()),
    ]
)
