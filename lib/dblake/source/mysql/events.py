"""What binlog events say of themselves: headers, transactions, statements, files. Rows pass unread.

Each function reads one kind of event, given whole but for its checksum; which events there are and what follows from
each is decided in ``frames`` and ``log``. Tables are read in ``table_map``.

Layouts are those of "Replication Protocol, binlog events" in MySQL's documentation of the source and, for numbers
from 160 on, of MariaDB's "Replication Protocol".
"""

from __future__ import annotations

import codecs
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pymysql.charset import charset_by_id

from dblake.source.mysql.gtids import Gtid

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR, FORMAT_DESCRIPTION, XID = 2, 3, 4, 5, 13, 14, 15, 16
TABLE_MAP, INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = 19, 26, 27, 28, 29
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE = 33, 34, 35, 36, 37, 38
PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 39, 40, 41, 42
ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = range(160, 166)

#: Rows events: versions 1 (MariaDB, and MySQL before 5.6) and 2; MariaDB's compressed ones by what they unpack to.
ROWS = frozenset({23, 24, 25, 30, 31, 32})
UPDATES = frozenset({24, 31})
COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}

#: Events that say nothing of tables: notes to replicas, parts of statements that are judged by their statement.
IGNORED = frozenset({
    STOP, INTVAR, RAND, USER_VAR, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE,
    ANNOTATE_ROWS, BINLOG_CHECKPOINT, GTID_LIST, START_ENCRYPTION,
})  # fmt: skip
NAMES = {
    6: "LOAD", 8: "CREATE_FILE", 9: "APPEND_BLOCK", 10: "EXEC_LOAD", 11: "DELETE_FILE", 12: "NEW_LOAD",
    17: "BEGIN_LOAD_QUERY", 18: "EXECUTE_LOAD_QUERY", 20: "PRE_GA_WRITE_ROWS", 21: "PRE_GA_UPDATE_ROWS",
    22: "PRE_GA_DELETE_ROWS", INCIDENT: "INCIDENT", PARTIAL_UPDATE_ROWS: "PARTIAL_UPDATE_ROWS",
}  # fmt: skip
"""Of events that are refused by them."""

HEADER = struct.Struct("<IBIIIH")
"""timestamp, type, server id, size, end of the event in the file, flags"""
BODY = HEADER.size
ARTIFICIAL, CAN_BE_IGNORED = 0x20, 0x80
"""Flags: made for the stream, so without a place in the file; and nothing is lost with it."""
CHECKSUM = 4
SOUND = 0x2144DF1C
"""The CRC-32 of anything that ends with its own CRC-32."""

_GTID = struct.Struct("<B16sq")
COMMITTED_AT = 42
"""In the body of MySQL's GTID event; 7 bytes."""
_MARIADB_GTID = struct.Struct("<QIB")
_XID = struct.Struct("<iII")
_QUERY = struct.Struct("<IIBHH")
_CHARSET, _SQL_MODE = 4, 1
# Sizes of the status variables that may come before the character set, in the order in which servers write them.
_STATUS_SIZES = {0: 4, 1: 8, 3: 4}


class Begin(NamedTuple):
    """A GTID event: a transaction begins. ``gtid`` as ``gtids`` takes it, None if the transaction has no name."""

    gtid: Gtid | None
    committed_at: int | None = None
    """Microseconds since 1970, if the event says so."""
    opens: bool = False
    """True if rows follow without a BEGIN."""
    prepared: str | None = None
    """The name of the XA transaction that this one prepares."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement in the log, and what its session took its words for. ``text`` is None if it cannot be read."""

    text: str | None
    default_schema: str
    sql_mode: int = 0


def committed_at(event: bytes) -> int:
    """The header's time, in microseconds since 1970."""
    return int.from_bytes(event[:4], "little") * 1_000_000


def gtid(event: bytes) -> Begin:
    """Reads MySQL's GTID event; before 8.0 it has no time."""
    _, server, number = _GTID.unpack_from(event, BODY)
    when = BODY + COMMITTED_AT
    micros = int.from_bytes(event[when : when + 7], "little") & ~(1 << 55) if len(event) >= when + 7 else None
    named = None if event[4] == ANONYMOUS_GTID else (server.hex(), "", number)
    return Begin(named, micros)


def gtid_tagged(event: bytes) -> Begin:
    """Reads MySQL 9's GTID event, a list of numbered fields of which the first seven matter."""
    at = BODY
    for _ in range(3):  # the format's version, the size, the last field that must be understood
        _, at = _number(event, at)
    server, number, tag, micros = b"", 0, "", None
    while at < len(event):
        field, at = _number(event, at)
        if field == 1:
            digits = []
            for _ in range(16):
                digit, at = _number(event, at)
                digits.append(digit)
            server = bytes(digits)
        elif field == 3:
            size, at = _number(event, at)
            tag = event[at : at + size].decode()
            at += size
        else:
            value, at = _number(event, at)
            if field == 2:
                number = value >> 1
            elif field == 6:
                micros = value
                break
    return Begin((server.hex(), tag, number), micros)


def mariadb_gtid(event: bytes) -> Begin:
    """Reads MariaDB's GTID event, which stands for BEGIN unless one lone statement follows."""
    sequence, domain, flags = _MARIADB_GTID.unpack_from(event, BODY)
    named = (domain, int.from_bytes(event[5:9], "little"), sequence)
    standalone, group_commit, prepared = flags & 1, flags & 2, flags & 64
    name = None
    if prepared:
        at = BODY + _MARIADB_GTID.size + (8 if group_commit else 0)
        form, first, second = struct.unpack_from("<iBB", event, at)
        name = xa_name(form, event[at + 6 : at + 6 + first], event[at + 6 + first : at + 6 + first + second])
    # One that completes an XA transaction (128) has a lone statement, too.
    return Begin(named, opens=not standalone and not flags & 128, prepared=name)


def xa_prepare(event: bytes) -> tuple[str, bool]:
    """Of an XA_PREPARE event the transaction's name, and whether it is committed with that."""
    form, first, second = _XID.unpack_from(event, BODY + 1)
    at = BODY + 1 + _XID.size
    return xa_name(form, event[at : at + first], event[at + first : at + first + second]), bool(event[BODY])


def xa_name(form: int, first: bytes, second: bytes) -> str:
    """An XA transaction's name as statements in the log spell it."""
    return f"X'{first.hex()}',X'{second.hex()}',{form}"


def statement_bytes(event: bytes) -> bytes:
    """The statement of a Query event, undecoded and without looking at anything else."""
    _, _, schema, _, status = _QUERY.unpack_from(event, BODY)
    return event[BODY + _QUERY.size + status + schema + 1 :]


def query(event: bytes) -> Query:
    """Reads a Query event. Its text is in the character set of the session that sent it."""
    _, _, schema, _, status = _QUERY.unpack_from(event, BODY)
    at = BODY + _QUERY.size + status
    codec, sql_mode = _session(event[at - status : at])
    raw = event[at + schema + 1 :]
    if event[4] == QUERY_COMPRESSED:
        raw = _inflated(raw, 0)
    try:
        text = raw.decode(codec) if codec else None
    except UnicodeDecodeError:
        text = None
    return Query(text, event[at : at + schema].decode("utf-8", "replace"), sql_mode)


def rotate(event: bytes) -> tuple[str, int]:
    """Of a Rotate event the file that comes next, and the offset in it."""
    return event[BODY + 8 :].decode(), int.from_bytes(event[BODY : BODY + 8], "little")


def plain_rows(event: bytes) -> bytes:
    """MariaDB's compressed rows event as the rows event it was made from, with a size that counts no checksum."""
    kind = COMPRESSED_ROWS[event[4]]
    at = BODY + 8
    if kind >= 30:
        at += int.from_bytes(event[at : at + 2], "little")
    width, at = packed(event, at)
    at += (width + 7) // 8 * (2 if kind in UPDATES else 1)
    body = event[BODY:at] + _inflated(event, at)
    stamp, _, server, _, end, flags = HEADER.unpack_from(event)
    return HEADER.pack(stamp, kind, server, BODY + len(body), end, flags) + body


def payload(event: bytes) -> Iterator[bytes]:
    """The events in a Transaction_payload event, one by one as they are unpacked; they have no checksums."""
    at, size, compression = BODY, 0, 0
    while True:
        field, at = packed(event, at)
        if field == 0:
            break
        length, at = packed(event, at)
        value, _ = packed(event, at)
        if field == 1:
            size = value
        elif field == 2:
            compression = value
        at += length
    if compression not in (0, 255):
        raise ValueError(f"compression {compression}")
    packed_events = event[at : at + size]
    if len(packed_events) != size:
        raise ValueError("the payload is cut off")
    with pa.input_stream(pa.py_buffer(packed_events), compression=None if compression else "zstd") as stream:
        while head := stream.read(BODY):
            rest = HEADER.unpack(head)[3] - BODY
            event = head + stream.read(rest)
            if len(event) != BODY + rest:
                raise ValueError("an event is cut off")
            yield event


def packed(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded number, and where what follows it begins."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of a GTID_TAGGED event: as many ones at the low end of its first byte as bytes follow that one."""
    size = 1
    while size < 9 and data[at] >> (size - 1) & 1:
        size += 1
    return int.from_bytes(data[at : at + size], "little") >> min(size, 8), at + size


def _inflated(data: bytes, at: int) -> bytes:
    """What MariaDB compressed: a byte with the size of the length, the length, and zlib's own bytes."""
    if data[at] & 0xF0 != 0x80:
        raise ValueError("compression")
    start = at + 1 + (data[at] & 7)
    return zlib.decompress(data[start:], bufsize=int.from_bytes(data[at + 1 : start], "big"))


def _session(status: bytes) -> tuple[str | None, int]:
    """The codec of a statement, None if there is none, and the SQL mode it was read in."""
    at, sql_mode = 0, 0
    while at < len(status):
        code, at = status[at], at + 1
        if code == _CHARSET:
            return _codec(int.from_bytes(status[at : at + 2], "little")), sql_mode
        if code == _SQL_MODE:
            sql_mode = int.from_bytes(status[at : at + 8], "little")
        if code == 6:  # the catalogue's name
            at += 1 + status[at]
        elif code == 2:  # the same with an end mark, in old versions
            at += 2 + status[at]
        elif code in _STATUS_SIZES:
            at += _STATUS_SIZES[code]
        else:
            break
    return "utf-8", sql_mode


def _codec(collation: int) -> str | None:
    # Collations that are not in the list are newer than it, when servers' default was utf8mb4 for long.
    try:
        name = str(charset_by_id(collation).encoding)
        return codecs.lookup(name).name
    except KeyError:
        return "utf-8"
    except LookupError:
        return None
