"""The landing table's columns, the contract between capture (left) and decoding (right).

One row is one message, chunk row or watermark. ``payload`` holds its bytes as the source sent them, ``format`` names
their layout:

========== ===================== ================================================================================
kind       format                payload
========== ===================== ================================================================================
row        pgoutput              one Insert, Update or Delete message
row        binlog_rows           one rows event, from its header on, without a checksum: one row change or many
truncate   pgoutput              the Truncate message; one landing row for each table in it
truncate   json                  MySQL, MariaDB: the statement; one landing row for each table that it empties or drops
ddl        json                  a statement that changes tables, as both log readers write it: one landing row for
                                 each captured table, with ``rewrites`` and ``gone``; of no table if none is named
chunk      copy                  one line of COPY text, newline included
chunk      mysql_rows            one result row of the text protocol, without its packet header
schema     json                  ``TableSchema.to_json``, at the position from which it holds
low, high  json                  ``landing.control``: the watermarks of a chunk
verify_…   as without prefix     ``verify_low``, ``verify_chunk``, ``verify_high``: a chunk to be compared with state
heartbeat  (null)                empty: only the row's position is used
moved      json                  ``landing.control``: the incarnation begins where another server continues the log
========== ===================== ================================================================================

Rows of masked tables (``mask``) are ``pgoutput`` and ``copy`` whatever the source, with a relation number of 0.

``batch`` numbers the commits, without gaps; one commit is one batch is one file. ``chunk`` rows have no position of
their own: their ``lsn`` is null, and their ``seq`` is the row's number in the chunk times two. So is that of
``verify_chunk`` rows. A ``moved`` row, the first of its incarnation, has neither.
"""

from __future__ import annotations

import pyarrow as pa

BATCH, LEASE_EPOCH = "batch", "lease_epoch"
INCARNATION, LSN, SEQ = "incarnation", "lsn", "seq"
KIND, TABLE, SCHEMA_ID, TXID = "kind", "table", "schema_id", "txid"
COMMITTED_AT, LAST_IN_TXN, CHUNK_ID = "committed_at", "last_in_txn", "chunk_id"
FORMAT, PAYLOAD, LANDED_AT = "format", "payload", "landed_at"

ROW, SCHEMA, DDL, TRUNCATE = "row", "schema", "ddl", "truncate"
LOW, CHUNK, HIGH, HEARTBEAT, MOVED = "low", "chunk", "high", "heartbeat", "moved"
VERIFY_LOW, VERIFY_CHUNK, VERIFY_HIGH = "verify_low", "verify_chunk", "verify_high"
"""Chunks that ``verification`` compares with state. They become no events: reconcile reads none of these kinds. The
names sort after all others, so that readers find them by the statistics of landing's files."""

PGOUTPUT, COPY, JSON = "pgoutput", "copy", "json"
BINLOG_ROWS, MYSQL_ROWS = "binlog_rows", "mysql_rows"

#: The field of a commit's metadata in which capture records where it resumes; only capture's commits have it.
RESUME_METADATA = "dblake"

_TIME = pa.timestamp("us", tz="UTC")

#: The columns that a source writes: all of landing but those that the writer of a batch adds.
CAPTURED = pa.schema(
    [
        pa.field(INCARNATION, pa.int64()),
        pa.field(LSN, pa.int64()),
        pa.field(SEQ, pa.int64()),
        pa.field(KIND, pa.string()),
        pa.field(TABLE, pa.string()),
        pa.field(SCHEMA_ID, pa.string()),
        pa.field(TXID, pa.int64()),
        pa.field(COMMITTED_AT, _TIME),
        pa.field(LAST_IN_TXN, pa.bool_()),
        pa.field(CHUNK_ID, pa.string()),
        pa.field(FORMAT, pa.string()),
        pa.field(PAYLOAD, pa.binary()),
    ]
)

#: The landing table.
LANDING = pa.schema(
    [pa.field(BATCH, pa.int64()), pa.field(LEASE_EPOCH, pa.int64()), *CAPTURED, pa.field(LANDED_AT, _TIME)]
)
