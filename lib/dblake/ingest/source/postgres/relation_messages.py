"""Relation messages of pgoutput: the tables that row messages refer to by number.

Place: between the stream of messages and ``relations``, which resolves a number to a captured table. What the columns'
types mean is left to the catalog. Layout: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.payloads.formats.pgoutput import RELATION_OFFSET, TRUNCATE, TRUNCATE_RELATIONS_OFFSET


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


def relation_numbers(messages: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the relation's oid for each Insert, Update, Delete or Truncate message."""
    if len(messages) == 0:
        return np.zeros(0, np.int64)
    at = np.frombuffer(messages.buffers()[1], np.int32, len(messages) + 1)[:-1].astype(np.int64)
    data = np.frombuffer(messages.buffers()[2], np.uint8)
    # It follows the kind letter; in a Truncate a count and the options come between.
    at = at + np.where(data[at] == TRUNCATE, TRUNCATE_RELATIONS_OFFSET, RELATION_OFFSET)
    number = np.zeros(len(at), np.int64)
    for byte in range(4):
        number = (number << 8) | data[at + byte]
    return number


def parse_relation(payload: bytes) -> Relation:
    """Parse a Relation message."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    schema_name, at = read_string(payload, 5)
    table_name, at = read_string(payload, at)
    identity = chr(payload[at])
    (count,) = struct.unpack_from(">H", payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = payload[at]
        name, at = read_string(payload, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", payload, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, bool(flags & 1)))
    # An empty namespace means pg_catalog.
    return Relation(oid, schema_name or "pg_catalog", table_name, identity, tuple(columns))


def read_string(payload: bytes, at: int) -> tuple[str, int]:
    """Return the string that ends with a zero byte, and the offset behind it."""
    end = payload.index(0, at)
    return payload[at:end].decode(), end + 1
