"""Single values of MySQL's binary JSON as the server prints them: strings, doubles, decimals, dates and times.

Place: below ``mysql_json``, which reads the tree. Guarantee: the text is the server's, digit for digit: doubles in
its notation, other types as opaque values of their field type.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

import numpy as np

from dblake.payloads.decode.mysql_cells import PAD_BYTES, Cells
from dblake.payloads.decode.mysql_numbers import decimal, decimal_bytes

_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
"""Types of opaque values: field types of the server (``enum_field_types``)."""
_TEMPORAL = (_TIMESTAMP, _DATE, _TIME, _DATETIME)

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in map(chr, range(32))} | {
    ord(c): "\\" + e for c, e in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
}
_MAX_PLAIN_DIGITS = 15
"""With more digits before the point, or zeros behind it, the server writes an exponent."""


def quote(text: str) -> str:
    """Return a string or key in quotes, with the escapes that the server writes."""
    return '"' + text.translate(_ESCAPES) + '"'


def format_double(number: float) -> str:
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


def format_opaque(kind: int, data: bytes) -> str:
    """Return a value of a field type, given with its bytes; types without a notation are encoded as base64."""
    if kind == _DECIMAL:
        precision, scale = data[0], data[1]
        if len(data) != 2 + decimal_bytes(precision, scale):
            raise ValueError(f"a decimal in JSON has {len(data) - 2} bytes, not the length of its digits")
        cells = Cells(np.frombuffer(data[2:] + bytes(PAD_BYTES), np.uint8), np.zeros(1, np.int64),
                      np.array([len(data) - 2]), np.zeros(1, np.bool_))
        return str(decimal(cells, precision, scale).values[0])
    if kind in _TEMPORAL:
        return '"' + _format_temporal(kind, struct.unpack("<q", data)[0]) + '"'
    # The server breaks lines as MIME does, and prints the break escaped.
    lines = base64.encodebytes(data).decode().rstrip().replace("\n", "\\n")
    return f'"base64:type{kind}:{lines}"'


def _format_temporal(kind: int, packed: int) -> str:
    """Format a date or time packed into 64 bits: the lowest 24 bits are microseconds."""
    size = abs(packed)
    whole, micro = size >> 24, size & 0xFFFFFF
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micro:06d}"
    if kind == _TIME:
        return "-" * (packed < 0) + f"{whole >> 12 & 0x3FF:02d}:{clock}"
    days = whole >> 17
    date = f"{(days >> 5) // 13:04d}-{(days >> 5) % 13:02d}-{days & 31:02d}"
    return date if kind == _DATE else f"{date} {whole >> 12 & 31:02d}:{clock}"


def read_bytes(data: bytes, offset: int) -> bytes:
    """Return bytes that follow their length, which has seven bits a byte."""
    length = shift = 0
    while True:
        length |= (data[offset] & 0x7F) << shift
        shift, offset = shift + 7, offset + 1
        if data[offset - 1] < 0x80:
            break
    if offset + length > len(data):
        raise ValueError("a JSON value reaches past its end")
    return data[offset : offset + length]
