"""The few of wal2json's objects (format 2) that capture must understand, as ``pgoutput`` does for its messages.

Rows pass unread but for their shape: all of an object but its values and what its transaction is. Rows of one table
that carry the same columns have the same shape, byte for byte. What a shape means is for ``shapes`` to find out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.core.errors import SourceError
from dblake.formats import wal2json as layout
from dblake.landing.columns import WAL2JSON
from dblake.source.postgres.settings import PostgresSettings

FORMAT = WAL2JSON
LETTER = layout.LETTER

_OPTIONS = {
    "format-version": "2", "include-transaction": "true", "include-xids": "true", "include-timestamp": "true",
    "include-lsn": "true", "include-types": "true", "include-typmod": "true", "include-not-null": "true",
    "include-pk": "true", "actions": "insert,update,delete,truncate",
}
_NUMBERS_WHOLE = {"numeric-data-types-as-string": "true"}

_BEGIN = re.compile(rb'"xid":(\d+),"timestamp":"([^"+]+)\+00","lsn":"([0-9A-F]+)/([0-9A-F]+)"')
_COMMIT = re.compile(rb'"nextlsn":"([0-9A-F]+)/([0-9A-F]+)"')
_STRING = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rb'"schema":(%b),"table":(%b)' % (_STRING, _STRING))
_COLUMN = re.compile(rb'\{"name":(%b),"type":(.*?),"value":(?:,"optional":(true|false))?\}' % _STRING)
_KEY_COLUMN = re.compile(rb'\{"name":(%b),"type":' % _STRING)
_NEW, _OLD, _KEY = b',"columns":[', b',"identity":[', b',"pk":['


def options(settings: PostgresSettings) -> Sequence[dict[str, str]]:  # noqa: ARG001 - it sends all tables
    """What to start the stream with, the best first: versions up to 2.5 cannot send NaN and infinity of numbers."""
    return _OPTIONS | _NUMBERS_WHOLE, _OPTIONS


def begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Of Begin objects the commit record's ``lsn``, ``committed_at`` in microseconds since 1970, 32-bit ``xid``."""
    said = _BEGIN.findall(b"\n".join(payloads))
    if len(said) != len(payloads):
        raise SourceError("wal2json began a transaction in an unknown way", next_step="report its version")
    times = np.array([time.decode() for _, time, _, _ in said], "datetime64[us]")
    return {
        "lsn": np.array([_lsn(high, low) for *_, high, low in said], np.int64),
        "committed_at": times.astype(np.int64),
        "xid": np.array([int(xid) for xid, *_ in said], np.int64),
    }


def commit_end(payload: bytes) -> int:
    """The LSN after the commit record: where the log goes on once this transaction is safe."""
    said = _COMMIT.search(payload)
    if said is None:
        raise SourceError("wal2json ended a transaction in an unknown way", next_step="report its version")
    return _lsn(*said.groups())


def truncates(payload: bytes) -> list[bytes]:
    """Truncates come one by one already."""
    return [payload]


def watermark_row(payload: bytes) -> tuple[int, str]:
    """The two values of the watermark table's new row in an update; a value made NULL by hand is empty."""
    row = {column["name"]: column["value"] for column in json.loads(payload)["columns"]}
    return int(row["id"]), row["value"] or ""


def _lsn(high: bytes, low: bytes) -> int:
    return int(high, 16) << 32 | int(low, 16)


@dataclass(frozen=True, slots=True)
class ToldColumn:
    """A column of a new row: ``type`` as wal2json spells it, quotes and all."""

    name: str
    type: bytes
    nullable: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """What an object tells beside its values.

    ``table`` is its schema's name and its own. ``columns`` are those of the new row that were sent (None for a delete
    or a truncate), ``old`` the names and types of the old one's (None for an insert or a truncate), ``key`` the
    primary key's columns (None for a truncate).
    """

    table: tuple[str, str]
    columns: tuple[ToldColumn, ...] | None
    old: tuple[tuple[str, bytes], ...] | None
    key: tuple[str, ...] | None

    @classmethod
    def of(cls, signature: bytes) -> Shape:
        """Reads what ``signatures`` made of an object."""
        head = _HEAD.match(signature)
        if head is None:
            raise SourceError("wal2json named a table in an unknown way", next_step="report its version")
        rows, has_key, key = signature[head.end() :].partition(_KEY)
        new, has_old, old = rows.partition(_OLD)
        return cls(
            (json.loads(head[1]), json.loads(head[2])),
            tuple(ToldColumn(json.loads(name), type_, optional != b"false")
                  for name, type_, optional in _COLUMN.findall(new)) if new.startswith(_NEW) else None,
            tuple((json.loads(name), type_) for name, type_, _ in _COLUMN.findall(old)) if has_old else None,
            tuple(json.loads(name) for name in _KEY_COLUMN.findall(key)) if has_key else None,
        )


def type_text(type_: bytes) -> str:
    """A type as PostgreSQL spells it. Names that begin and end with a quote came without quotes of JSON's."""
    text: str = json.loads(type_) if type_.endswith(b'"') else type_.decode()
    return text


def written(type_: str) -> bytes:
    """A type as wal2json writes it."""
    bare = type_.startswith('"') and not type_.endswith("]")
    return type_.encode() if bare else json.dumps(type_, ensure_ascii=False).encode()


def signatures(payload: pa.BinaryArray) -> pa.DictionaryArray:
    """The shape of each object, as bytes: from its table's name on, without its values."""
    count = len(payload)
    offsets = np.frombuffer(payload.buffers()[1], np.int32, count + 1).astype(np.int64)
    data = np.frombuffer(payload.buffers()[2], np.uint8, offsets[-1])
    found = layout.parts(data, offsets[:-1], offsets[1:])
    if found.wrong.any():
        raise SourceError("wal2json sent a change in an unknown way", next_step="report its version")
    # Pieces alternate with values, so that each begins at a head or a value's end, in order.
    bounds = np.empty(2 * (count + len(found.row)), np.int32)
    bounds[::2] = np.sort(np.concatenate((found.heads, found.ends)))
    bounds[1::2] = np.sort(np.concatenate((found.values, offsets[1:])))
    every = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    pieces = every.take(pa.array(np.arange(0, len(bounds) - 1, 2)))
    ends = np.cumsum(np.bincount(found.row, minlength=count) + 1)
    piece_ends = np.frombuffer(pieces.buffers()[1], np.int32, len(pieces) + 1)
    of_objects = np.ascontiguousarray(piece_ends[np.append(0, ends)])
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(of_objects), pieces.buffers()[2]]
    ).dictionary_encode()
