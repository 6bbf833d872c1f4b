"""Decodes MySQL's binary JSON to the text that the server prints for it.

Called by ``binlog_columns`` for ``json``; chunks have the server's own text. Promises the same text, key for key and
digit for digit: keys in stored order, doubles in the server's notation, decimals and times as it prints them. Decodes
one value at a time, each distinct value once: a tree has no columns. Layout: MySQL's source, ``json_binary.h``.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa

from dblake.decode.mysql_cells import PAD_BYTES, Cells, Text
from dblake.decode.mysql_numbers import decimal, decimal_bytes

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_LITERALS = ("null", "true", "false")
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
"""Types of opaque values: field types of the server (``enum_field_types``)."""
_TEMPORAL = (_TIMESTAMP, _DATE, _TIME, _DATETIME)

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in map(chr, range(32))} | {
    ord(c): "\\" + e for c, e in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
_MAX_PLAIN_DIGITS = 15
"""With more digits before the point, or zeros behind it, the server writes an exponent."""
_BASE64_LINE = 76


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
        return "".join(out)
    return _LITERALS[0]


def _append_value(kind: int, data: bytes, at: int, out: list[str]) -> None:
    if kind <= _LARGE_ARRAY:
        _append_container(kind, data[at:], out)
    elif kind == _LITERAL:
        out.append(_LITERALS[data[at]])
    elif kind in _INTEGERS:
        out.append(str(struct.unpack_from(_INTEGERS[kind], data, at)[0]))
    elif kind == _DOUBLE:
        out.append(_format_double(struct.unpack_from("<d", data, at)[0]))
    elif kind == _STRING:
        out.append(_quote(_read_bytes(data, at).decode()))
    elif kind == _OPAQUE:
        out.append(_format_opaque(data[at], _read_bytes(data, at + 1)))
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
            out.append(_quote(data[key : key + length].decode()) + ": ")
        at = entry + index * (1 + width)
        value = data[at]
        inlined = value in (_LITERAL, 5, 6) or (large and value in (7, 8))
        _append_value(value, data, at + 1 if inlined else struct.unpack_from(number, data, at + 1)[0], out)
    out.append("}" if is_object else "]")


def _read_bytes(data: bytes, at: int) -> bytes:
    """Return bytes that follow their length, which has seven bits a byte."""
    length = shift = 0
    while True:
        length |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            break
    if at + length > len(data):
        raise ValueError("a JSON value reaches past its end")
    return data[at : at + length]


def _quote(text: str) -> str:
    return '"' + text.translate(_ESCAPES) + '"'


def _format_double(number: float) -> str:
    """Return the shortest digits, with an exponent where the server writes one, else with a point."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent
    if text == "0":
        plain = "0.0"
    elif not -_MAX_PLAIN_DIGITS < point <= _MAX_PLAIN_DIGITS:
        plain = text[0] + ("." + text[1:] if len(text) > 1 else "") + f"e{point - 1}"
    elif point <= 0:
        plain = "0." + "0" * -point + text
    else:
        plain = text[:point].ljust(point, "0") + "." + (text[point:] or "0")
    return "-" * sign + plain


def _format_opaque(kind: int, data: bytes) -> str:
    if kind == _DECIMAL:
        precision, scale = data[0], data[1]
        if len(data) != 2 + decimal_bytes(precision, scale):
            raise ValueError(f"a decimal in JSON has {len(data) - 2} bytes, not the length of its digits")
        cells = Cells(np.frombuffer(data[2:] + bytes(PAD_BYTES), np.uint8), np.zeros(1, np.int64),
                      np.array([len(data) - 2]), np.zeros(1, np.bool_))
        return str(decimal(cells, precision, scale).values[0])
    if kind in _TEMPORAL:
        return '"' + _format_temporal(kind, struct.unpack("<q", data)[0]) + '"'
    encoded = base64.b64encode(data).decode()
    # The server breaks lines as MIME does, and prints the break escaped.
    lines = "\\n".join(encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE))
    return f'"base64:type{kind}:{lines}"'


def _format_temporal(kind: int, packed: int) -> str:
    """Format a date or time packed into 64 bits, the lowest 24 of which are microseconds."""
    size = abs(packed)
    whole, micro = size >> 24, size & 0xFFFFFF
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micro:06d}"
    if kind == _TIME:
        return "-" * (packed < 0) + f"{whole >> 12 & 0x3FF:02d}:{clock}"
    days = whole >> 17
    date = f"{(days >> 5) // 13:04d}-{(days >> 5) % 13:02d}-{days & 31:02d}"
    return date if kind == _DATE else f"{date} {whole >> 12 & 31:02d}:{clock}"
