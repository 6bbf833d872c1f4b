"""Binlog events as capture sees all of them: types, header, and the few fields that it reads of every transaction.

Each function reads one kind of event, given whole but for its checksum. GTIDs are read in ``gtid_events``, compressed
and packed events in ``packed_events``, tables in ``table_map``. Rare events (rotate, format description, statements,
XA) are decoded by mysql-replication's classes in ``control_events``; which event means what to a transaction is decided
in ``transactions``.

Layouts: MySQL documentation of the source, "Replication Protocol", binlog events; for numbers from 160 on, MariaDB's
"Replication Protocol".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pymysqlreplication.constants import BINLOG

from dblake.payloads.formats.binlog import DELETE_ROWS, HEADER_BYTES, UPDATE_ROWS, WRITE_ROWS

#: mysql-replication 1.0 declares no numbers for these.
TRANSACTION_CONTEXT, VIEW_CHANGE, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 36, 37, 40, 41, 42
QUERY_COMPRESSED = 165

ROWS = frozenset((*WRITE_ROWS, *UPDATE_ROWS, *DELETE_ROWS))
UPDATES = frozenset(UPDATE_ROWS)
HEARTBEATS = frozenset({BINLOG.HEARTBEAT_LOG_EVENT, HEARTBEAT_V2})

#: Events without effect on tables: notes to replicas, and parts of statements that are classified by their text.
IGNORED = frozenset({
    BINLOG.STOP_EVENT, BINLOG.INTVAR_EVENT, BINLOG.RAND_EVENT, BINLOG.USER_VAR_EVENT, BINLOG.IGNORABLE_LOG_EVENT,
    BINLOG.ROWS_QUERY_LOG_EVENT, BINLOG.PREVIOUS_GTIDS_LOG_EVENT, TRANSACTION_CONTEXT, VIEW_CHANGE,
    BINLOG.MARIADB_ANNOTATE_ROWS_EVENT, BINLOG.MARIADB_BINLOG_CHECKPOINT_EVENT, BINLOG.MARIADB_GTID_GTID_LIST_EVENT,
    BINLOG.MARIADB_START_ENCRYPTION_EVENT,
})  # fmt: skip

NAMES = {
    number: name.removesuffix("_EVENT") for name, number in vars(BINLOG).items()
    if name.endswith("_EVENT") and not name.startswith("INTVAR_")
}  # fmt: skip
"""Names of event types, for messages."""

HEADER = struct.Struct("<IBIIIH")
"""Timestamp in seconds, type, server id, size in bytes, end offset in the file, flags."""
BODY = HEADER_BYTES
ARTIFICIAL_FLAG, IGNORABLE_FLAG = 0x20, 0x80
"""Made for the stream, so without an offset in the file; safe to ignore if the type is unknown."""
CHECKSUM_BYTES = 4
CRC32_RESIDUE = 0x2144DF1C
"""The CRC-32 of any bytes that end with their own CRC-32."""

QUERY_HEADER = struct.Struct("<IIBHH")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement of the log with the session settings that decide its reading.

    Characters of ``text`` that are not known are replaced.
    """

    text: str
    default_schema: str
    sql_mode: int = 0


def committed_at(event: bytes) -> int:
    """Return the header's timestamp in microseconds since 1970."""
    return int.from_bytes(event[:4], "little") * 1_000_000


def statement_bytes(event: bytes) -> bytes:
    """Return the undecoded statement of a Query event; reads nothing else of it."""
    _, _, schema, _, status = QUERY_HEADER.unpack_from(event, BODY)
    return event[BODY + QUERY_HEADER.size + status + schema + 1 :]
