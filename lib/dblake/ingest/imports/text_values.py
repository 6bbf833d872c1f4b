"""Conversions of values to text that both databases share: numbers, times and bytes, a whole Arrow array at a time.

Guarantee: a value that has no exact text of its column's type raises ArrowInvalid; none is rounded or cut.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.payloads.decode.mysql_text import to_hex

_MICROSECOND_DIGITS = 6
_HEX = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _HEX[_byte] = _digit
    _HEX[bytes([_byte]).upper()[0]] = _digit


def is_text(values: pa.Array) -> bool:
    """Return True for strings, whatever their layout."""
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def is_binary(values: pa.Array) -> bool:
    """Return True for bytes, whatever their layout."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(kind(values.type) for kind in kinds)


def all_match(texts: pa.Array, pattern: str) -> bool:
    """Return True if every text that is not NULL matches a regular expression."""
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def integers(values: pa.Array) -> pa.StringArray:
    """Return integers, of text or numbers; also floats without a fraction, as pandas writes integers with NULL."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal256(76, 0)).cast(pa.string())
    try:
        return values.cast(pa.int64()).cast(pa.string())
    except pa.ArrowInvalid:
        return values.cast(pa.uint64()).cast(pa.string())


def decimals(values: pa.Array, scale: int | None) -> pa.StringArray:
    """Return decimals with all digits of the scale; with None they keep the digits that they have."""
    if is_text(values):
        plain = r"^-?(0|[1-9]\d*)" + (rf"\.\d{{{scale}}}$" if scale else r"$")
        if scale is None or all_match(values, plain):
            return values.cast(pa.string())
    elif pa.types.is_floating(values.type):
        values = _without_exponent(values.cast(pa.string()))
    if scale is not None:
        values = values.cast(pa.decimal256(76, scale))
    return _without_exponent(values.cast(pa.string()))


def _without_exponent(texts: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return texts
    # Arrow writes only very small or large numbers so.
    return pa.array([None if text is None else format(Decimal(text), "f") for text in texts.to_pylist()], pa.string())


def floats(values: pa.Array, *, single: bool) -> pa.Array:
    """Return floating point numbers as an Arrow array of their width."""
    numbers = values.cast(pa.float32() if single and is_text(values) else pa.float64())
    return numbers.cast(pa.float32()) if single else numbers


def dates(values: pa.Array) -> pa.StringArray:
    """Return dates of the years 1 to 9999."""
    return _require_years(values.cast(pa.date32()).cast(pa.string()))


def timestamps(values: pa.Array, *, digits: int | None = None) -> pa.StringArray:
    """Return dates with a time of day, in UTC if the values have a zone, without naming it.

    With ``digits`` the fraction of a second has so many, else it ends at its last digit that is not 0.
    """
    if is_text(values):
        is_zoned = pc.any(pc.match_substring_regex(values, r":\d\d(\.\d*)?(Z|[+-]\d\d(:?\d\d)?)$")).as_py()
    else:
        is_zoned = pa.types.is_timestamp(values.type) and values.type.tz is not None
    moments = values.cast(pa.timestamp("us", tz="UTC") if is_zoned else pa.timestamp("us"))
    texts = pc.strftime(moments.cast(pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    return _require_years(_with_fraction(texts, digits))


def times(values: pa.Array, *, digits: int | None = None) -> pa.StringArray:
    """Return times of day; ``digits`` as for ``timestamps``."""
    return _with_fraction(values.cast(pa.time64("us")).cast(pa.string()), digits)


def _with_fraction(texts: pa.StringArray, digits: int | None) -> pa.StringArray:
    """Shorten a fraction of six digits. Raises ArrowInvalid if a digit would be lost."""
    if digits is None:
        return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1"), r"\.$", "")
    if digits < _MICROSECOND_DIGITS and not all_match(texts, rf"\.\d{{{digits}}}0*$"):
        raise pa.ArrowInvalid("digits of seconds would be lost")
    kept = rf"(\.\d{{{digits}}})\d*$" if digits else r"()\.\d*$"
    return pc.replace_substring_regex(texts, kept, r"\1")


def _require_years(texts: pa.StringArray) -> pa.StringArray:
    if not all_match(texts, r"^\d{4}-"):
        raise pa.ArrowInvalid("a year before 1 or after 9999")
    return texts


def hex_text(values: pa.Array) -> pa.StringArray:
    r"""Return bytes as ``\x`` and hex digits; text is taken if it has that form."""
    if is_text(values):
        if not all_match(values, r"^\\x([0-9a-fA-F]{2})*$"):
            raise pa.ArrowInvalid("not bytes in hex")
        return pc.utf8_lower(values.cast(pa.string()))
    texts = to_hex(pc.fill_null(values.cast(pa.binary()), b""))
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))


def from_hex(values: pa.Array) -> pa.BinaryArray:
    r"""Return the bytes that text of ``\x`` and hex digits represents."""
    digits = pc.fill_null(pc.utf8_slice_codeunits(hex_text(values), 2), "")
    _, offsets, data = digits.buffers()
    ends = np.frombuffer(offsets, np.int32)[digits.offset : digits.offset + len(digits) + 1]
    every = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    pairs = _HEX[every[ends[0] : ends[-1]]].reshape(-1, 2)
    raw = (pairs[:, 0] << 4 | pairs[:, 1]).astype(np.uint8)
    bounds = ((ends - ends[0]) // 2).astype(np.int32)
    out = pa.BinaryArray.from_buffers(pa.binary(), len(digits), [None, pa.py_buffer(bounds), pa.py_buffer(raw)])
    return pc.if_else(values.is_valid(), out, pa.scalar(None, pa.binary()))
