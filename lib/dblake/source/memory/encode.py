"""Rows as PostgreSQL would send them: pgoutput messages and lines of COPY text.

The memory source speaks with these, so that landing holds the same bytes as from a server. Promises what the server
promises (layouts of "Logical Replication Message Formats", protocol version 1, and of ``COPY``'s text format);
whether a row makes sense for its table is left to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""A TOASTed value that an update did not touch, so that the server does not send it."""

Value = bytes | str | Literal[_Unchanged.UNCHANGED] | None
"""A value as text or bytes; None is NULL."""

_UNIX_OF_2000 = 946_684_800_000_000
_ESCAPES = str.maketrans({"\\": r"\\", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"})


def pgoutput_insert(relid: int, values: Sequence[Value]) -> bytes:
    """An Insert message."""
    return struct.pack(">cI", b"I", relid) + _tuple(b"N", values)


def pgoutput_update(
    relid: int, new: Sequence[Value], old: Sequence[Value] | None = None, old_kind: Literal["K", "O"] = "K"
) -> bytes:
    """An Update message; ``old`` has a value, or None, for every column, also if only the key is sent (``K``)."""
    before = b"" if old is None else _tuple(old_kind.encode(), old)
    return struct.pack(">cI", b"U", relid) + before + _tuple(b"N", new)


def pgoutput_delete(relid: int, old: Sequence[Value], old_kind: Literal["K", "O"] = "K") -> bytes:
    """A Delete message."""
    return struct.pack(">cI", b"D", relid) + _tuple(old_kind.encode(), old)


def pgoutput_truncate(relids: Sequence[int], *, options: int = 0) -> bytes:
    """A Truncate message; ``options`` is 1 for CASCADE, 2 for RESTART IDENTITY, added up."""
    return struct.pack(f">cIB{len(relids)}I", b"T", len(relids), options, *relids)


def pgoutput_relation(
    relid: int, schema: str, table: str, columns: Sequence[tuple[str, int, int, bool]], replica_identity: str = "d"
) -> bytes:
    """A Relation message; a column is its name, type number, type modifier and whether it identifies rows."""
    described = b"".join(
        struct.pack(">B", identity) + name.encode() + b"\0" + struct.pack(">Ii", type_oid, modifier)
        for name, type_oid, modifier, identity in columns
    )
    names = schema.encode() + b"\0" + table.encode() + b"\0"
    head = struct.pack(">cI", b"R", relid) + names + replica_identity.encode()
    return head + struct.pack(">H", len(columns)) + described


def pgoutput_begin(lsn: int, committed_at: int, xid: int) -> bytes:
    """A Begin message: the commit record's LSN, microseconds since 1970, the 32-bit transaction id."""
    return struct.pack(">cQqI", b"B", lsn, committed_at - _UNIX_OF_2000, xid)


def pgoutput_commit(lsn: int, end_lsn: int, committed_at: int) -> bytes:
    """A Commit message: the commit record's LSN, the LSN after it, microseconds since 1970."""
    return struct.pack(">cBQQq", b"C", 0, lsn, end_lsn, committed_at - _UNIX_OF_2000)


def copy_line(values: Sequence[Value]) -> bytes:
    """A line of COPY text, newline included. A table without columns is an empty line."""
    return b"\t".join(map(_copy_value, values)) + b"\n"


def _tuple(letter: bytes, values: Sequence[Value]) -> bytes:
    return letter + struct.pack(">H", len(values)) + b"".join(map(_tuple_value, values))


def _tuple_value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">cI", b"t", len(raw)) + raw


def _copy_value(value: Value) -> bytes:
    if value is None:
        return rb"\N"
    if value is UNCHANGED:
        raise ValueError("a chunk reads whole rows: it has no unchanged values")
    raw = value.encode() if isinstance(value, str) else value
    # Latin-1 maps bytes to letters one for one, whatever they are.
    return raw.decode("latin-1").translate(_ESCAPES).encode("latin-1")
