"""Source text → typed Arrow arrays.

``read_texts`` types a whole column at once. Guarantee: the result equals what Spark's casts give, for every text that a
source can send. A text that the type cannot hold unchanged becomes NULL; nothing is rounded, shifted or refused. A
column without odd values is typed by one Arrow kernel; only if that kernel refuses, the odd values are sorted out.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.transform.spark.types import TEXT

_INTEGERS = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()}
_OTHERS = {
    TEXT: pa.string(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
    "TIMESTAMP_NTZ": pa.timestamp("us"), "TIMESTAMP": pa.timestamp("us", tz="UTC"), "BINARY": pa.binary(),
    "ARRAY<STRING>": pa.list_(pa.string()),
}
_MAX_DIGITS = 38
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_BOOLEANS = dict.fromkeys(("t", "true", "y", "yes", "1"), True) | dict.fromkeys(("f", "false", "n", "no", "0"), False)

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_ZONE = re.compile(r"(.*)([+-])(\d\d):?(\d\d)?(?::?(\d\d))?")
_FLOAT = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_BLANK = "".join(map(chr, range(33)))


def arrow_type(spark: str) -> pa.DataType:
    """Return the Arrow type of a Spark type as ``spark.types`` writes it."""
    decimal = _DECIMAL.fullmatch(spark)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _INTEGERS.get(spark) or _OTHERS[spark]


def read_texts(spark: str, texts: pa.Array) -> pa.Array:
    """Type a column of texts; NULL where ``spark``, the type, cannot hold the text unchanged."""
    if spark == TEXT:
        return texts
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), arrow_type(spark))
    decimal = _DECIMAL.fullmatch(spark)
    if decimal:
        return _read_decimals(texts, int(decimal[1]), int(decimal[2]))
    if spark in _INTEGERS:
        return _read_integers(texts, _INTEGERS[spark])
    return _READERS[spark](texts)


def _read_integers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow takes 0x1f as a number too.
    if _has_only(texts, b"0123456789-"):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            pass
    info = np.iinfo(kind.to_pandas_dtype())
    return _by_distinct(texts, kind, lambda text: _integer(text.strip(_BLANK), info.min, info.max))


def _integer(text: str, least: int, most: int) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    value = int(text) if len(text) < 40 else most + 1
    return value if least <= value <= most else None


def _read_decimals(texts: pa.Array, precision: int, scale: int) -> pa.Array:
    kind = pa.decimal128(precision, scale)
    # Arrow lets some numbers of 39 digits overflow.
    if _has_only(texts, b"0123456789-.") and pc.max(pc.binary_length(texts)).as_py() <= _MAX_DIGITS:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            pass
    return _by_distinct(texts, kind, lambda text: _decimal(text.strip(_BLANK), precision, scale))


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    fraction = text.partition(".")[2] if "." in text else ""
    if len(fraction.rstrip("0")) > scale or not re.match(_FLOAT, text):
        return None
    with localcontext() as context:
        context.prec = 2 * precision + 200
        try:
            value = Decimal(text).quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            return None
        return value if abs(value) < Decimal(10) ** (precision - scale) else None


def _read_floats(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if _has_only(texts, b"0123456789-+.eE"):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            pass
    return _by_distinct(texts, kind, lambda text: _float(text.strip(_BLANK)))


def _float(text: str) -> float | None:
    if re.match(_FLOAT, text):
        return float(text)
    sign = -1.0 if text.startswith("-") else 1.0
    word = text.lstrip("+-").lower() if len(text) - len(text.lstrip("+-")) < 2 else ""
    return sign * float("inf") if word in ("infinity", "inf") else float("nan") if text.lower() == "nan" else None


def _read_booleans(texts: pa.Array) -> pa.Array:
    return _by_distinct(texts, pa.bool_(), lambda text: _BOOLEANS.get(text.strip(_BLANK).lower()))


def _read_dates(texts: pa.Array) -> pa.Array:
    matched = _all_true(pc.match_substring_regex(texts, f"^{_DATE}$"))
    if matched:
        try:
            return texts.cast(pa.date32())
        except pa.ArrowInvalid:
            pass
    return _where(_are_dates(texts, f"^{_DATE}$"), texts).cast(pa.date32())


def _read_local_times(texts: pa.Array, pattern: str = f"^{_DATE}(?:[ T]{_TIME})?$") -> pa.Array:
    """Read ``2024-01-31 12:34:56.789``; the day alone is midnight."""
    try:
        if _all_true(pc.match_substring_regex(texts, pattern)):
            return texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        pass
    return _where(_are_dates(texts, pattern), texts).cast(pa.timestamp("us"))


def _read_instants(texts: pa.Array) -> pa.Array:
    """Read times in UTC, with ``+00`` or without a zone, at once, and times in other zones one by one."""
    pattern = f"^{_DATE}[ T]{_TIME}$"
    utc = _read_local_times(pc.replace_substring_regex(texts, r"^(.{19}.*)\+00(?::?00)?$", r"\1"), pattern)
    unread = pc.and_(pc.is_null(utc), pc.match_substring_regex(texts, r"^.{19}.*[+-][0-9]{2}"))
    if pc.any(unread).as_py():
        read = _by_distinct(_where(unread, texts), pa.int64(), _instant)
        utc = pc.if_else(unread, read.view(pa.timestamp("us")), utc)
    return utc.cast(pa.timestamp("us", tz="UTC"))


def _instant(text: str) -> int | None:
    """Return microseconds since 1970; Python's own times end with the year 9999."""
    match = _ZONE.fullmatch(text)
    local = _read_local_times(pa.array([match[1]])).view(pa.int64())[0].as_py() if match else None
    if match is None or local is None:
        return None
    offset = 1_000_000 * (3600 * int(match[3]) + 60 * int(match[4] or 0) + int(match[5] or 0))
    return int(local - offset if match[2] == "+" else local + offset)


def _are_dates(texts: pa.Array, pattern: str) -> pa.Array:
    """Return True where a text has the pattern and its numbers are a day and a time of day; never NULL."""
    fits = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    shaped = pc.if_else(fits, texts, "2000-01-01")

    def number(start: int, end: int) -> np.ndarray:
        return _numbers(pc.utf8_slice_codeunits(shaped, start, end))

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    last = _DAYS[np.clip(month, 0, 12)] + (leap & (month == 2))
    good = (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    good &= (number(11, 13) < 24) & (number(14, 16) < 60) & (number(17, 19) < 60)
    return pc.and_(fits, pa.array(good))


def _numbers(texts: pa.Array) -> np.ndarray:
    """Integers of texts of digits; an empty one is 0."""
    numbers: np.ndarray = pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int32()).to_numpy(zero_copy_only=False)
    return numbers


def _read_bytes(texts: pa.Array) -> pa.Array:
    r"""Read bytes from ``\x`` and hexadecimal digits."""
    digits = pc.utf8_slice_codeunits(texts, 2)
    if not _all_true(pc.match_substring_regex(digits, "^(?:[0-9a-fA-F]{2})*$")):
        # Spark reads an odd number of digits as if a 0 stood before them.
        hexed = pc.fill_null(pc.match_substring_regex(digits, "^[0-9a-fA-F]*$"), False)
        odd = pc.equal(pc.bit_wise_and(pc.utf8_length(digits), 1), 1)
        digits = _where(hexed, pc.if_else(odd, pc.binary_join_element_wise("0", digits, ""), digits))
    digits = _contiguous(digits)
    offsets = np.frombuffer(digits.buffers()[1], np.int32, len(digits) + 1)
    data = digits.buffers()[2]
    raw = unhexlify(memoryview(data)[: offsets[-1]]) if data else b""
    validity = digits.buffers()[0]
    return pa.Array.from_buffers(
        pa.binary(), len(digits), [validity, pa.py_buffer((offsets // 2).astype(np.int32)), pa.py_buffer(raw)],
        null_count=digits.null_count,
    )


def _contiguous(texts: pa.Array) -> pa.Array:
    """Return an array that begins at its buffers' beginning, without bytes under its NULLs."""
    return texts.take(pa.array(np.arange(len(texts))))


def _by_distinct(texts: pa.Array, kind: pa.DataType, read: Callable[[str], object]) -> pa.Array:
    """Read each distinct text once."""
    encoded = texts.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    read_once = pa.array([None if text is None else read(text) for text in encoded.dictionary.to_pylist()], kind)
    return read_once.take(encoded.indices)


def _where(kept: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(kept, values, pa.scalar(None, values.type))


def _all_true(found: pa.Array) -> bool:
    """Return True unless one of them is false; NULL counts as true."""
    return bool(pc.all(found, min_count=0).as_py())


def _has_only(texts: pa.Array, allowed: bytes) -> bool:
    """Return True if the texts have no other bytes than these."""
    data = texts.buffers()[2]
    if data is None:
        return True
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    used = np.frombuffer(data, np.uint8)[offsets[0]: offsets[-1]]
    legal = np.zeros(256, bool)
    legal[list(allowed)] = True
    return bool(legal[used].all())


_READERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "FLOAT": lambda texts: _read_floats(texts, pa.float32()),
    "DOUBLE": lambda texts: _read_floats(texts, pa.float64()),
    "BOOLEAN": _read_booleans,
    "DATE": _read_dates,
    "TIMESTAMP_NTZ": _read_local_times,
    "TIMESTAMP": _read_instants,
    "BINARY": _read_bytes,
}
