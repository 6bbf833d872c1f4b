"""The few pgoutput messages capture must understand: transactions, relations, truncates. Rows pass unread.

Layouts are those of "Logical Replication Message Formats" in PostgreSQL's documentation, protocol version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.landing.columns import PGOUTPUT
from dblake.source.postgres.settings import PostgresSettings

FORMAT = PGOUTPUT
LETTER = 0
"""Where in a message its letter stands."""

BEGIN, COMMIT, RELATION, TRUNCATE, MESSAGE = b"BCRTM"
INSERT, UPDATE, DELETE = b"IUD"

_BEGIN = np.dtype([("kind", "u1"), ("lsn", ">u8"), ("committed_at", ">i8"), ("xid", ">u4")])
_COMMIT = struct.Struct(">cBQQq")
_UNIX_OF_2000 = 946_684_800_000_000


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as the log names it; ``identity`` is set on those that identify rows in updates and deletes."""

    name: str
    type: int
    modifier: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the log describes it before the first row of it in a session, and after each change."""

    oid: int
    schema_name: str
    table_name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


def options(settings: PostgresSettings) -> Sequence[dict[str, str]]:
    """What to start the stream with."""
    told = {"messages": "true"} if settings.log_ddl else {}
    return ({
        "proto_version": "1", "publication_names": '"' + settings.publication.replace('"', '""') + '"', **told,
    },)


def relation_numbers(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The relation's number in Insert, Update, Delete and Truncate messages."""
    if len(messages) == 0:
        return np.zeros(0, np.int64)
    at = np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1)[:-1].astype(np.int64)
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    # It follows the message's letter, and in a Truncate also a count and the options.
    at = at + np.where(data[at] == TRUNCATE, 6, 1)
    number = np.zeros(len(at), np.int64)
    for byte in range(4):
        number = (number << 8) | data[at + byte]
    return number


def begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Of Begin messages the commit record's ``lsn``, ``committed_at`` in microseconds since 1970, 32-bit ``xid``."""
    said = np.frombuffer(b"".join(payloads), _BEGIN)
    read = {name: said[name].astype(np.int64) for name in ("lsn", "committed_at", "xid")}
    read["committed_at"] += _UNIX_OF_2000
    return read


def commit_end(payload: bytes) -> int:
    """The LSN after the commit record: where the log goes on once this transaction is safe."""
    end: int = _COMMIT.unpack_from(payload)[3]
    return end


def truncates(payload: bytes) -> list[bytes]:
    """A Truncate message of several tables as one message for each, since landing has a row for each."""
    return [b"T\0\0\0\1" + payload[5:6] + payload[at : at + 4] for at in range(6, len(payload), 4)]


def relation(payload: bytes) -> Relation:
    """Reads a Relation message."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    schema_name, at = _string(payload, 5)
    table_name, at = _string(payload, at)
    identity = chr(payload[at])
    (count,) = struct.unpack_from(">H", payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = payload[at]
        name, at = _string(payload, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", payload, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, bool(flags & 1)))
    # An empty namespace stands for pg_catalog.
    return Relation(oid, schema_name or "pg_catalog", table_name, identity, tuple(columns))


def message(payload: bytes) -> tuple[str, bytes] | None:
    """Prefix and content of a Message, which an application wrote; None if it is in no transaction."""
    if not payload[1] & 1:
        return None
    prefix, at = _string(payload, 10)
    return prefix, payload[at + 4 : at + 4 + int.from_bytes(payload[at : at + 4])]


def watermark_row(payload: bytes) -> tuple[int, str]:
    """The two values of the watermark table's new row in an Update message; a value made NULL by hand is empty."""
    at = 8 if payload[5:6] == b"N" else _after_old_row(payload) + 3
    reader, at = _value(payload, at)
    value, _ = _value(payload, at)
    return int(reader), value


def _value(payload: bytes, at: int) -> tuple[str, int]:
    """One value of a row, and where the next one begins."""
    if payload[at : at + 1] != b"t":
        return "", at + 1
    end = at + 5 + int.from_bytes(payload[at + 1 : at + 5])
    return payload[at + 5 : end].decode(), end


def _after_old_row(payload: bytes) -> int:
    (count,) = struct.unpack_from(">H", payload, 6)
    at = 8
    for _ in range(count):
        _, at = _value(payload, at)
    return at


def _string(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(0, at)
    return payload[at:end].decode(), end + 1


def widen(xids: npt.NDArray[np.int64], near: int) -> npt.NDArray[np.int64]:
    """The 64-bit transaction ids of 32-bit ones, as those nearest to a 64-bit id known to be close."""
    return near + ((xids - near + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


def lsn_number(text: str) -> int:
    """PostgreSQL's ``16/B374D848`` as a number."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(number: int) -> str:
    """A number as PostgreSQL writes an LSN."""
    return f"{number >> 32:X}/{number & 0xFFFF_FFFF:X}"
