"""Decode MySQL's binary JSON to the text that the server prints for it.

Called by ``binlog_columns`` for ``json``; chunks have the server's own text. Guarantee: the text is the same, key for
key in stored order, with the values of ``mysql_json_values``. A tree has no columns, so values are decoded one at a
time, each distinct value once. Layout: MySQL's source, ``json_binary.h``.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.mysql_json_values import format_double, format_opaque, quote, read_bytes

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_LITERALS = ("null", "true", "false")


def json_text(cells: Cells) -> Text:
    """Return a column's documents as text."""
    distinct = cells.raw().dictionary_encode()
    texts, wrong = [], np.zeros(len(distinct.dictionary), np.bool_)
    for number, document in enumerate(distinct.dictionary.to_pylist()):
        try:
            texts.append(text_of(document))
        except (IndexError, ValueError, struct.error, RecursionError):
            texts.append("")
            wrong[number] = True
    return Text(
        pa.array(texts, pa.string()).take(distinct.indices),
        wrong=wrong[distinct.indices.to_numpy()] & ~cells.null if wrong.any() else None,
    )


def text_of(document: bytes) -> str:
    """Return one document as text. An empty one, which IGNORE may leave, is null to the server.

    Raises ValueError, IndexError or struct.error for a malformed document.
    """
    out: list[str] = []
    if document:
        _append_value(document[0], document, 1, out)
    return "".join(out) or _LITERALS[0]


def _append_value(kind: int, data: bytes, offset: int, out: list[str]) -> None:
    if kind <= _LARGE_ARRAY:
        _append_container(kind, data[offset:], out)
    elif kind == _LITERAL:
        out.append(_LITERALS[data[offset]])
    elif kind in _INTEGERS:
        out.append(str(struct.unpack_from(_INTEGERS[kind], data, offset)[0]))
    elif kind == _DOUBLE:
        out.append(format_double(struct.unpack_from("<d", data, offset)[0]))
    elif kind == _STRING:
        out.append(quote(read_bytes(data, offset).decode()))
    elif kind == _OPAQUE:
        out.append(format_opaque(data[offset], read_bytes(data, offset + 1)))
    else:
        raise ValueError(f"unknown type of JSON value: {kind}")


def _append_container(kind: int, data: bytes, out: list[str]) -> None:
    """Append an object or array: counts, key entries, value entries, keys, values; offsets count from its start."""
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    width, number = (4, "<I") if large else (2, "<H")
    count, size = struct.unpack_from("<II" if large else "<HH", data)
    if size > len(data):
        raise ValueError("a JSON value reaches past its end")
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    entry = 2 * width + (count * (width + 2) if is_object else 0)
    out.append("{" if is_object else "[")
    for index in range(count):
        if index:
            out.append(", ")
        if is_object:
            key, length = struct.unpack_from("<IH" if large else "<HH", data, 2 * width + index * (width + 2))
            out.append(quote(data[key : key + length].decode()) + ": ")
        offset = entry + index * (1 + width)
        value = data[offset]
        inlined = value in (_LITERAL, 5, 6) or (large and value in (7, 8))
        _append_value(value, data, offset + 1 if inlined else struct.unpack_from(number, data, offset + 1)[0], out)
    out.append("}" if is_object else "]")
