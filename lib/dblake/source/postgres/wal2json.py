"""Parses the wal2json objects (format 2) that capture needs, as ``pgoutput`` does for its messages.

Row objects pass unparsed except for their layout: everything in an object but its values and its transaction. Rows of
one table with the same columns have the same layout, byte for byte. Resolving a layout to a table and its schema is for
``row_layouts``. Objects: wal2json's README, "format-version 2".
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
from dblake.formats import wal2json as wal2json_format
from dblake.landing.columns import WAL2JSON
from dblake.source.postgres.settings import PostgresSettings

FORMAT = WAL2JSON
KIND_OFFSET = wal2json_format.LETTER

_OPTIONS = {
    "format-version": "2", "include-transaction": "true", "include-xids": "true", "include-timestamp": "true",
    "include-lsn": "true", "include-types": "true", "include-typmod": "true", "include-not-null": "true",
    "include-pk": "true", "actions": "insert,update,delete,truncate",
}
_EXACT_NUMBERS = {"numeric-data-types-as-string": "true"}

_BEGIN = re.compile(rb'"xid":(\d+),"timestamp":"([^"+]+)\+00","lsn":"([0-9A-F]+)/([0-9A-F]+)"')
_COMMIT = re.compile(rb'"nextlsn":"([0-9A-F]+)/([0-9A-F]+)"')
_STRING = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rb'"schema":(%b),"table":(%b)' % (_STRING, _STRING))
_COLUMN = re.compile(rb'\{"name":(%b),"type":(.*?),"value":(?:,"optional":(true|false))?\}' % _STRING)
_KEY_COLUMN = re.compile(rb'\{"name":(%b),"type":' % _STRING)
_NEW, _OLD, _KEY = b',"columns":[', b',"identity":[', b',"pk":['


def stream_options(settings: PostgresSettings) -> Sequence[dict[str, str]]:  # noqa: ARG001 - it sends all tables
    """Return the options to start the stream with, the best first; versions up to 2.5 send NaN and infinity as null."""
    return _OPTIONS | _EXACT_NUMBERS, _OPTIONS


def parse_begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the commit's ``lsn``, ``committed_at`` (microseconds since 1970) and 32-bit ``xid`` of Begin objects.

    Raises SourceError if an object has another layout.
    """
    begins = _BEGIN.findall(b"\n".join(payloads))
    if len(begins) != len(payloads):
        raise _unknown_layout("a Begin object")
    times = np.array([time.decode() for _, time, _, _ in begins], "datetime64[us]")
    return {
        "lsn": np.array([_lsn(high, low) for *_, high, low in begins], np.int64),
        "committed_at": times.astype(np.int64),
        "xid": np.array([int(xid) for xid, *_ in begins], np.int64),
    }


def parse_commit_end(payload: bytes) -> int:
    """Return the LSN after the commit record: where the log resumes once this transaction has landed.

    Raises SourceError if the object has another layout.
    """
    match = _COMMIT.search(payload)
    if match is None:
        raise _unknown_layout("a Commit object")
    return _lsn(*match.groups())


def split_truncate(payload: bytes) -> list[bytes]:
    """Return the one Truncate object: wal2json sends one for each table."""
    return [payload]


def parse_watermark(payload: bytes) -> tuple[int, str]:
    """Return id and value of the new row in an update of the watermark table; NULL (set by hand) becomes empty."""
    row = {column["name"]: column["value"] for column in json.loads(payload)["columns"]}
    return int(row["id"]), row["value"] or ""


def _lsn(high: bytes, low: bytes) -> int:
    return int(high, 16) << 32 | int(low, 16)


def _unknown_layout(what: str) -> SourceError:
    return SourceError(
        f"wal2json sent {what} with an unknown layout", next_step="report wal2json's version to dblake's maintainers"
    )


@dataclass(frozen=True, slots=True)
class LayoutColumn:
    """A column of a new row; ``type`` in wal2json's notation, quotes included."""

    name: str
    type: bytes
    nullable: bool


@dataclass(frozen=True, slots=True)
class RowLayout:
    """An object without its values: the table and the columns it carries."""

    table: tuple[str, str]
    """Schema name and table name, unquoted."""
    columns: tuple[LayoutColumn, ...] | None
    """The columns of the new row that were sent; None for a delete or a truncate."""
    old: tuple[tuple[str, bytes], ...] | None
    """Names and types of the old row's columns; None for an insert or a truncate."""
    key: tuple[str, ...] | None
    """The primary key's columns; None for a truncate."""

    @classmethod
    def parse(cls, encoded: bytes) -> RowLayout:
        """Parse one value of ``encode_layouts``. Raises SourceError if it is malformed."""
        head = _HEAD.match(encoded)
        if head is None:
            raise _unknown_layout("the name of a table")
        rows, has_key, key = encoded[head.end() :].partition(_KEY)
        new, has_old, old = rows.partition(_OLD)
        return cls(
            (json.loads(head[1]), json.loads(head[2])),
            tuple(LayoutColumn(json.loads(name), type_, optional != b"false")
                  for name, type_, optional in _COLUMN.findall(new)) if new.startswith(_NEW) else None,
            tuple((json.loads(name), type_) for name, type_, _ in _COLUMN.findall(old)) if has_old else None,
            tuple(json.loads(name) for name in _KEY_COLUMN.findall(key)) if has_key else None,
        )


def decode_type(type_: bytes) -> str:
    """Return a type in PostgreSQL's notation. wal2json sends names that begin and end with a quote without JSON's."""
    text: str = json.loads(type_) if type_.endswith(b'"') else type_.decode()
    return text


def encode_type(type_: str) -> bytes:
    """Return a type in wal2json's notation."""
    bare = type_.startswith('"') and not type_.endswith("]")
    return type_.encode() if bare else json.dumps(type_, ensure_ascii=False).encode()


def encode_layouts(payload: pa.BinaryArray) -> pa.DictionaryArray:
    """Return the layout of each object as bytes: the object from its table's name on, without its values.

    Raises SourceError if an object is not a change in format 2.
    """
    count = len(payload)
    offsets = np.frombuffer(payload.buffers()[1], np.int32, count + 1).astype(np.int64)
    data = np.frombuffer(payload.buffers()[2], np.uint8, offsets[-1])
    parts = wal2json_format.parts(data, offsets[:-1], offsets[1:])
    if parts.wrong.any():
        raise _unknown_layout("a change")
    # Pieces alternate with values: each piece begins at a head or at a value's end, in order.
    bounds = np.empty(2 * (count + len(parts.row)), np.int32)
    bounds[::2] = np.sort(np.concatenate((parts.heads, parts.ends)))
    bounds[1::2] = np.sort(np.concatenate((parts.values, offsets[1:])))
    every = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    pieces = every.take(pa.array(np.arange(0, len(bounds) - 1, 2)))
    ends = np.cumsum(np.bincount(parts.row, minlength=count) + 1)
    piece_ends = np.frombuffer(pieces.buffers()[1], np.int32, len(pieces) + 1)
    of_objects = np.ascontiguousarray(piece_ends[np.append(0, ends)])
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(of_objects), pieces.buffers()[2]]
    ).dictionary_encode()
