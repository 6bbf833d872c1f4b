"""Parses the pgoutput messages that capture needs: transactions, relations, truncates, watermarks.

Row messages pass unparsed; Spark decodes them. Layouts: PostgreSQL documentation, "Logical Replication Message
Formats", protocol version 1.
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
KIND_OFFSET = 0
"""Offset of the kind letter in a message."""

BEGIN, COMMIT, RELATION, TRUNCATE, MESSAGE = b"BCRTM"
INSERT, UPDATE, DELETE = b"IUD"

_BEGIN = np.dtype([("kind", "u1"), ("lsn", ">u8"), ("committed_at", ">i8"), ("xid", ">u4")])
_COMMIT = struct.Struct(">cBQQq")
_EPOCH_2000_MICROSECONDS = 946_684_800_000_000


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in a Relation message; ``identity`` is True if it is part of the replica identity."""

    name: str
    type: int
    modifier: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as a Relation message describes it: before its first row in a session, and after each change."""

    oid: int
    schema_name: str
    table_name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


def stream_options(settings: PostgresSettings) -> Sequence[dict[str, str]]:
    """Return the one set of options to start the stream with."""
    messages = {"messages": "true"} if settings.log_ddl else {}
    return ({
        "proto_version": "1", "publication_names": '"' + settings.publication.replace('"', '""') + '"', **messages,
    },)


def relation_numbers(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the relation's oid for each Insert, Update, Delete or Truncate message."""
    if len(messages) == 0:
        return np.zeros(0, np.int64)
    at = np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1)[:-1].astype(np.int64)
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    # It follows the kind letter; in a Truncate a count and the options come between.
    at = at + np.where(data[at] == TRUNCATE, 6, 1)
    number = np.zeros(len(at), np.int64)
    for byte in range(4):
        number = (number << 8) | data[at + byte]
    return number


def parse_begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the commit's ``lsn``, ``committed_at`` (microseconds since 1970) and 32-bit ``xid`` of Begin messages."""
    begins = np.frombuffer(b"".join(payloads), _BEGIN)
    columns = {name: begins[name].astype(np.int64) for name in ("lsn", "committed_at", "xid")}
    columns["committed_at"] += _EPOCH_2000_MICROSECONDS
    return columns


def parse_commit_end(payload: bytes) -> int:
    """Return the LSN after the commit record: where the log resumes once this transaction has landed."""
    end: int = _COMMIT.unpack_from(payload)[3]
    return end


def split_truncate(payload: bytes) -> list[bytes]:
    """Return a Truncate message of several tables as one message for each; landing has a row for each."""
    return [b"T\0\0\0\1" + payload[5:6] + payload[at : at + 4] for at in range(6, len(payload), 4)]


def parse_relation(payload: bytes) -> Relation:
    """Parse a Relation message."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    schema_name, at = _read_string(payload, 5)
    table_name, at = _read_string(payload, at)
    identity = chr(payload[at])
    (count,) = struct.unpack_from(">H", payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = payload[at]
        name, at = _read_string(payload, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", payload, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, bool(flags & 1)))
    # An empty namespace means pg_catalog.
    return Relation(oid, schema_name or "pg_catalog", table_name, identity, tuple(columns))


def parse_message(payload: bytes) -> tuple[str, bytes] | None:
    """Return prefix and content of a Message (``pg_logical_emit_message``); None if it is not transactional."""
    if not payload[1] & 1:
        return None
    prefix, at = _read_string(payload, 10)
    return prefix, payload[at + 4 : at + 4 + int.from_bytes(payload[at : at + 4])]


def parse_watermark(payload: bytes) -> tuple[int, str]:
    """Return id and value of the new row in an Update of the watermark table; NULL (set by hand) becomes empty."""
    at = 8 if payload[5:6] == b"N" else _skip_old_row(payload) + 3
    reader, at = _read_value(payload, at)
    value, _ = _read_value(payload, at)
    return int(reader), value


def _read_value(payload: bytes, at: int) -> tuple[str, int]:
    """Return one value of a row and the offset of the next."""
    if payload[at : at + 1] != b"t":
        return "", at + 1
    end = at + 5 + int.from_bytes(payload[at + 1 : at + 5])
    return payload[at + 5 : end].decode(), end


def _skip_old_row(payload: bytes) -> int:
    (count,) = struct.unpack_from(">H", payload, 6)
    at = 8
    for _ in range(count):
        _, at = _read_value(payload, at)
    return at


def _read_string(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(0, at)
    return payload[at:end].decode(), end + 1


def widen(xids: npt.NDArray[np.int64], near: int) -> npt.NDArray[np.int64]:
    """Return 64-bit transaction ids for 32-bit ones: those nearest to the 64-bit id ``near`` of about the same time."""
    return near + ((xids - near + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


def lsn_number(text: str) -> int:
    """Return the number of an LSN in PostgreSQL's notation, ``16/B374D848``."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(number: int) -> str:
    """Return a number in PostgreSQL's LSN notation."""
    return f"{number >> 32:X}/{number & 0xFFFF_FFFF:X}"
