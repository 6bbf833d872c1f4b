"""Encodes rows as PostgreSQL sends them: pgoutput messages and lines of COPY text.

Guarantee: landing holds the same bytes as from a server. Layouts: PostgreSQL documentation, "Logical Replication
Message Formats", protocol version 1, and COPY's text format. Whether a row fits its table is for the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""A TOASTed value that an update did not change, so that the server does not send it."""

Value = bytes | str | Literal[_Unchanged.UNCHANGED] | None
"""A value as text or bytes; None is NULL."""

_ESCAPES = str.maketrans({"\\": r"\\", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"})


def pgoutput_insert(relid: int, values: Sequence[Value]) -> bytes:
    """Encode an Insert message."""
    return struct.pack(">cI", b"I", relid) + _encode_tuple(b"N", values)


def pgoutput_update(
    relid: int, new: Sequence[Value], old: Sequence[Value] | None = None, old_kind: Literal["K", "O"] = "K"
) -> bytes:
    """Encode an Update message. ``old`` has one entry for each column, None outside the key if only that is sent."""
    old_tuple = b"" if old is None else _encode_tuple(old_kind.encode(), old)
    return struct.pack(">cI", b"U", relid) + old_tuple + _encode_tuple(b"N", new)


def pgoutput_delete(relid: int, old: Sequence[Value], old_kind: Literal["K", "O"] = "K") -> bytes:
    """Encode a Delete message; ``old`` as in ``pgoutput_update``."""
    return struct.pack(">cI", b"D", relid) + _encode_tuple(old_kind.encode(), old)


def pgoutput_truncate(relids: Sequence[int], *, options: int = 0) -> bytes:
    """Encode a Truncate message; ``options`` is a sum of 1 for CASCADE and 2 for RESTART IDENTITY."""
    return struct.pack(f">cIB{len(relids)}I", b"T", len(relids), options, *relids)


def copy_line(values: Sequence[Value]) -> bytes:
    """Encode a line of COPY text, newline included. A table without columns gives an empty line."""
    return b"\t".join(map(_encode_copy_value, values)) + b"\n"


def _encode_tuple(letter: bytes, values: Sequence[Value]) -> bytes:
    return letter + struct.pack(">H", len(values)) + b"".join(map(_encode_value, values))


def _encode_value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">cI", b"t", len(raw)) + raw


def _encode_copy_value(value: Value) -> bytes:
    if value is None:
        return rb"\N"
    if value is UNCHANGED:
        raise ValueError("a chunk reads complete rows, without unchanged values")
    raw = value.encode() if isinstance(value, str) else value
    # Latin-1 maps every byte to one letter and back.
    return raw.decode("latin-1").translate(_ESCAPES).encode("latin-1")
