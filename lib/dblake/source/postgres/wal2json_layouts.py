"""Layouts of wal2json's row objects: everything in an object but its values and its transaction.

Place: between the stream's objects and ``row_layouts``, which resolves a layout to a table and its schema. Guarantee:
rows of one table with the same columns have the same layout, byte for byte, so that a run of rows needs few of them
parsed. Objects: wal2json's README, "format-version 2".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dblake.formats import wal2json as wal2json_format
from dblake.source.postgres.wal2json import unknown_layout

_STRING = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rb'"schema":(%b),"table":(%b)' % (_STRING, _STRING))
_COLUMN = re.compile(rb'\{"name":(%b),"type":(.*?),"value":(?:,"optional":(true|false))?\}' % _STRING)
_KEY_COLUMN = re.compile(rb'\{"name":(%b),"type":' % _STRING)
_NEW, _OLD, _KEY = b',"columns":[', b',"identity":[', b',"pk":['


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
            raise unknown_layout("the name of a table")
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
        raise unknown_layout("a change")
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
