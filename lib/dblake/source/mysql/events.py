"""Binlog events whose fields capture reads for every transaction: headers, GTIDs, compressed and packed events.

Each function reads one kind of event, given whole but for its checksum. Rare events (rotate, format description,
statements, XA) are decoded by mysql-replication's classes in ``control_events``, tables in ``table_map``; which event
means what to a transaction is decided in ``transactions``.

Layouts: MySQL documentation of the source, "Replication Protocol", binlog events; for numbers from 160 on, MariaDB's
"Replication Protocol".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pymysqlreplication.constants import BINLOG

from dblake.formats.binlog import (
    DELETE_ROWS,
    FIRST_ROWS_V2,
    HEADER_BYTES,
    ROWS_HEADER_BYTES,
    UPDATE_ROWS,
    WRITE_ROWS,
)
from dblake.source.mysql.gtids import Gtid

#: mysql-replication 1.0 declares no numbers for these.
TRANSACTION_CONTEXT, VIEW_CHANGE, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 36, 37, 40, 41, 42
QUERY_COMPRESSED = 165

ROWS = frozenset((*WRITE_ROWS, *UPDATE_ROWS, *DELETE_ROWS))
UPDATES = frozenset(UPDATE_ROWS)
COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""MariaDB's compressed rows events, by the type that each unpacks to."""
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
COMMIT_TIME_OFFSET = 42
"""Offset of the immediate commit timestamp (7 bytes, microseconds) in the body of MySQL's GTID event, from 8.0.1 on."""

_GTID = struct.Struct("<B16sq")
_MARIADB_GTID = struct.Struct("<QIB")
_QUERY = struct.Struct("<IIBHH")
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128
_UNCOMPRESSED, _ZSTD = 255, 0


class Begin(NamedTuple):
    """The beginning of a transaction, as its GTID event has it. ``gtid`` is None if the transaction has no GTID."""

    gtid: Gtid | None
    committed_at: int | None = None
    """Microseconds since 1970; None if the event has no commit time."""
    opens: bool = False
    """True if rows follow without a BEGIN."""
    prepared: str | None = None
    """The name of the XA transaction that this one prepares."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement of the log with the session settings that decide its reading. ``text`` is None if not decodable."""

    text: str | None
    default_schema: str
    sql_mode: int = 0


def committed_at(event: bytes) -> int:
    """Return the header's timestamp in microseconds since 1970."""
    return int.from_bytes(event[:4], "little") * 1_000_000


def read_gtid(event: bytes) -> Begin:
    """Read MySQL's GTID event. Before 8.0.1 it has no commit time."""
    _, server, number = _GTID.unpack_from(event, BODY)
    at = BODY + COMMIT_TIME_OFFSET
    # The highest bit announces an original commit time, which follows.
    micros = int.from_bytes(event[at : at + 7], "little") & ~(1 << 55) if len(event) >= at + 7 else None
    named = None if event[4] == BINLOG.ANONYMOUS_GTID_LOG_EVENT else (server.hex(), "", number)
    return Begin(named, micros)


def read_tagged_gtid(event: bytes) -> Begin:
    """Read MySQL 9's tagged GTID event: a list of numbered fields, of which the first seven matter."""
    at = BODY
    for _ in range(3):  # format version, size, last field that a reader must understand
        _, at = _read_tagged_number(event, at)
    server, number, tag, micros = b"", 0, "", None
    while at < len(event):
        field, at = _read_tagged_number(event, at)
        if field == 1:
            digits = []
            for _ in range(16):
                digit, at = _read_tagged_number(event, at)
                digits.append(digit)
            server = bytes(digits)
        elif field == 3:
            size, at = _read_tagged_number(event, at)
            tag = event[at : at + size].decode()
            at += size
        else:
            value, at = _read_tagged_number(event, at)
            if field == 2:
                number = value >> 1
            elif field == 6:
                micros = value
                break
    return Begin((server.hex(), tag, number), micros)


def read_mariadb_gtid(event: bytes) -> Begin:
    """Read MariaDB's GTID event, which implies BEGIN unless one standalone statement follows."""
    sequence, domain, flags = _MARIADB_GTID.unpack_from(event, BODY)
    gtid = (domain, int.from_bytes(event[5:9], "little"), sequence)
    name = None
    if flags & _PREPARED_XA:
        at = BODY + _MARIADB_GTID.size + (8 if flags & _GROUP_COMMIT else 0)
        form, first, second = struct.unpack_from("<iBB", event, at)
        name = xa_name(form, event[at + 6 : at + 6 + first], event[at + 6 + first : at + 6 + first + second])
    # An event that completes an XA transaction precedes a standalone statement, too.
    return Begin(gtid, opens=not flags & (_STANDALONE | _COMPLETED_XA), prepared=name)


def xa_name(form: int, global_id: bytes, branch: bytes) -> str:
    """Return an XA transaction's name in the notation of the log's own statements."""
    return f"X'{global_id.hex()}',X'{branch.hex()}',{form}"


def statement_bytes(event: bytes) -> bytes:
    """Return the undecoded statement of a Query event; reads nothing else of it."""
    _, _, schema, _, status = _QUERY.unpack_from(event, BODY)
    return event[BODY + _QUERY.size + status + schema + 1 :]


def uncompressed_query(event: bytes) -> bytes:
    """Return MariaDB's compressed Query event as the Query event it was made from."""
    _, _, schema, _, status = _QUERY.unpack_from(event, BODY)
    at = BODY + _QUERY.size + status + schema + 1
    return _with_body(event, BINLOG.QUERY_EVENT, event[BODY:at] + _inflate(event, at))


def uncompressed_rows(event: bytes) -> bytes:
    """Return MariaDB's compressed rows event as the rows event it was made from, its size without a checksum."""
    kind = COMPRESSED_ROWS[event[4]]
    at = BODY + ROWS_HEADER_BYTES
    if kind >= FIRST_ROWS_V2:
        at += int.from_bytes(event[at : at + 2], "little")
    width, at = read_packed(event, at)
    at += (width + 7) // 8 * (2 if kind in UPDATES else 1)
    return _with_body(event, kind, event[BODY:at] + _inflate(event, at))


def _with_body(event: bytes, kind: int, body: bytes) -> bytes:
    stamp, _, server, _, end, flags = HEADER.unpack_from(event)
    return HEADER.pack(stamp, kind, server, BODY + len(body), end, flags) + body


def unpack_payload(event: bytes) -> Iterator[bytes]:
    """Yield the events of a TRANSACTION_PAYLOAD event, decompressed as they are consumed; they have no checksums.

    Raises ValueError for an unknown compression or a payload that is cut off.
    """
    at, size, compression = BODY, 0, _ZSTD
    while True:
        field, at = read_packed(event, at)
        if field == 0:
            break
        length, at = read_packed(event, at)
        value, _ = read_packed(event, at)
        if field == 1:
            size = value
        elif field == 2:
            compression = value
        at += length
    if compression not in (_ZSTD, _UNCOMPRESSED):
        raise ValueError(f"compression {compression}")
    packed = event[at : at + size]
    if len(packed) != size:
        raise ValueError("the payload is cut off")
    with pa.input_stream(pa.py_buffer(packed), compression="zstd" if compression == _ZSTD else None) as stream:
        while head := stream.read(BODY):
            rest = HEADER.unpack(head)[3] - BODY
            inner = head + stream.read(rest)
            if len(inner) != BODY + rest:
                raise ValueError("an event is cut off")
            yield inner


def read_packed(data: bytes, at: int) -> tuple[int, int]:
    """Return the length-encoded number at an offset, and the offset behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _read_tagged_number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of a tagged GTID event: its first byte ends with as many ones as bytes follow."""
    size = 1
    while size < 9 and data[at] >> (size - 1) & 1:
        size += 1
    return int.from_bytes(data[at : at + size], "little") >> min(size, 8), at + size


def _inflate(data: bytes, at: int) -> bytes:
    """Decompress MariaDB's format: a byte with the size of the length, the length, and a zlib stream."""
    if data[at] & 0xF0 != 0x80:
        raise ValueError("compression")
    start = at + 1 + (data[at] & 7)
    return zlib.decompress(data[start:], bufsize=int.from_bytes(data[at + 1 : start], "big"))
