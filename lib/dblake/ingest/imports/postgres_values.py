"""Values of files as the text that COPY writes for a PostgreSQL column, and rows of them as lines of COPY.

Guarantee: text equals what a chunk read of the same value lands, so that keys of files and of the log are equal byte
for byte; a value of a type without such a rule is taken as it is, and has to be in the server's own form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.schema import Column
from dblake.ingest.imports import text_values as convert
from dblake.ingest.imports.errors import column_error

_SIZED = re.compile(r"(.+?)\((\d+)(?:,(-?\d+))?\)(.*)", re.DOTALL)
_TRUE, _FALSE = pa.array(["t", "true", "1", "yes", "on"]), pa.array(["f", "false", "0", "no", "off"])
_DATE = r"\d{4,}-\d\d-\d\d"
_TIME = r"\d\d:\d\d:\d\d(\.\d*[1-9])?"
_DECIMAL, _SPECIAL = r"(0|-?[1-9]\d*)", "NaN|-?Infinity"
_CANONICAL = {
    "smallint": _DECIMAL, "integer": _DECIMAL, "bigint": _DECIMAL, "boolean": "[tf]",
    "date": rf"{_DATE}( BC)?|-?infinity",
    "timestamp without time zone": rf"{_DATE} {_TIME}( BC)?|-?infinity",
    "timestamp with time zone": rf"{_DATE} {_TIME}\+00( BC)?|-?infinity",
    "time without time zone": rf"{_TIME}|24:00:00",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
"""What the server writes; text of another form is converted."""
_ZONED = "timestamp with time zone"
_COPIED = {name: _CANONICAL[name] for name in ("date", "timestamp without time zone", _ZONED)} | {
    "bytea": r"\\\\x[0-9a-f]*", "interval": "[^P]*",
}
"""What COPY writes in a session with the settings of capture's, for the types whose text depends on settings."""
_OTHER_ZONE = r":\d\d(\.\d+)?[+-](00:|0[1-9]|1)"
_OTHER_SETTINGS = "it was written with other settings than TimeZone UTC, DateStyle ISO, bytea_output hex"
_ESCAPES = {"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}
_NULL = pa.scalar(rb"\N", pa.binary())


def to_text(values: pa.Array, column: Column) -> pa.StringArray:
    """Return a column's values as COPY writes them, without escapes. Raises Unsupported for values of another type."""
    match, name = _SIZED.fullmatch(column.type), _type_name(column)
    scale = int(match[3] or 0) if match else None
    pattern = _CANONICAL.get(name)
    if name == "numeric" and scale is not None:
        pattern = _DECIMAL + (rf"\.\d{{{scale}}}|" if scale > 0 else "|") + _SPECIAL
    if pattern and convert.is_text(values):
        texts = values.cast(pa.string())
        is_other = pc.invert(pc.match_substring_regex(texts, f"^({pattern})$"))
        if not pc.any(is_other).as_py():
            return texts
        return pc.replace_with_mask(texts, is_other, _converted(texts.filter(is_other), column, name, scale))
    return _converted(values, column, name, scale)


def _converted(values: pa.Array, column: Column, name: str, scale: int | None) -> pa.StringArray:
    match = _SIZED.fullmatch(column.type)
    try:
        if name == "numeric":
            return convert.decimals(values, scale)
        if name == "character" and convert.is_text(values):
            return pc.utf8_rpad(values.cast(pa.string()), int(match[2]) if match else 1)
        if name in _CONVERSIONS:
            return _CONVERSIONS[name](values)
        if convert.is_text(values) or convert.is_binary(values) or pa.types.is_null(values.type):
            return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise column_error(column.name, column.type, "it has a value that is not one of this type") from error
    raise column_error(column.name, column.type, f"values of type {values.type} have no text for it; write it as text")


def _type_name(column: Column) -> str:
    """Return a type's name without its sizes."""
    match = _SIZED.fullmatch(column.type)
    return match[1] + match[4] if match else column.type


def _booleans(values: pa.Array) -> pa.StringArray:
    texts = pc.utf8_lower(values.cast(pa.string()))
    is_true = pc.is_in(texts, _TRUE)
    if not pc.all(pc.or_(pc.or_(is_true, pc.is_in(texts, _FALSE)), pc.is_null(texts))).as_py():
        raise pa.ArrowInvalid("not a boolean")
    return pc.if_else(texts.is_valid(), pc.if_else(is_true, "t", "f"), pa.scalar(None, pa.string()))


def _zoned(values: pa.Array) -> pa.StringArray:
    """Return moments. Raises ArrowInvalid for text without a zone, which could mean any moment."""
    if convert.is_text(values):
        if not convert.all_match(values, r"(Z|[+-]\d\d(:?\d\d)?)$"):
            raise pa.ArrowInvalid("no time zone")
    elif not pa.types.is_timestamp(values.type) or values.type.tz is None:
        raise pa.ArrowInvalid("no time zone")
    return pc.binary_join_element_wise(convert.timestamps(values), "+00", "")


def _reals(values: pa.Array, *, single: bool) -> pa.StringArray:
    """Return numbers in the server's shortest form, which has an exponent below 1e-4 and from 1e15 (1e6) on."""
    texts = convert.floats(values, single=single).cast(pa.string())
    most = 6 if single else 15
    # Arrow's text is the server's for all but very small and large numbers.
    is_plain = pc.match_substring_regex(texts, rf"^-?\d{{1,{most}}}(\.\d*[1-9])?$")
    is_other = pc.or_(pc.invert(is_plain), pc.match_substring_regex(texts, r"^-?0\.0000"))
    if not pc.any(is_other).as_py():
        return texts
    distinct = texts.filter(is_other).dictionary_encode()
    written = pa.array([_real_text(text, most) for text in distinct.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(texts, is_other, written.take(distinct.indices))


def _real_text(text: str, most: int) -> str:
    """Return a number's shortest digits as the server writes them."""
    special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text)
    if special:
        return special
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    mantissa, _, exponent = digits.partition("e")
    whole, _, fraction = mantissa.partition(".")
    figures = (whole + fraction).lstrip("0")
    if not figures.strip("0"):
        return sign + "0"
    first = len(whole) - 1 if whole.strip("0") else len(fraction.lstrip("0")) - len(fraction) - 1
    power = int(exponent or 0) + first
    figures = figures.rstrip("0")
    if not -4 <= power < most:
        return f"{sign}{figures[0]}{'.' * (len(figures) > 1)}{figures[1:]}e{power:+03d}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{figures}"
    figures = figures.ljust(power + 1, "0")
    return sign + figures[: power + 1] + ("." + figures[power + 1 :] if len(figures) > power + 1 else "")


_CONVERSIONS: dict[str, Callable[[pa.Array], pa.StringArray]] = {
    "smallint": convert.integers, "integer": convert.integers, "bigint": convert.integers, "oid": convert.integers,
    "real": lambda values: _reals(values, single=True), "double precision": lambda values: _reals(values, single=False),
    "boolean": _booleans, "bytea": convert.hex_text, "date": convert.dates,
    "timestamp without time zone": convert.timestamps, "timestamp with time zone": _zoned,
    "time without time zone": convert.times, "uuid": lambda values: pc.utf8_lower(values.cast(pa.string())),
}


def copied_to_text(cells: pa.BinaryArray, column: Column) -> pa.BinaryArray:
    """Return a column of COPY text, still escaped, as sessions of capture write it: moments in UTC.

    Raises Unsupported for values that a session with other settings wrote and that cannot be converted.
    """
    name = _type_name(column)
    if name in _COPIED and not convert.all_match(cells, rf"^({_COPIED[name]}|\\N)$"):
        if name != _ZONED:
            raise column_error(column.name, column.type, _OTHER_SETTINGS)
        texts = cells.cast(pa.string())
        is_other = pc.invert(pc.match_substring_regex(texts, rf"^({_COPIED[name]}|\\N)$"))
        return pc.replace_with_mask(texts, is_other, to_text(texts.filter(is_other), column)).cast(pa.binary())
    is_zoned = "timestamp with time zone" in column.type or column.type.startswith("tstz")
    if is_zoned and name != _ZONED and pc.any(pc.match_substring_regex(cells, _OTHER_ZONE)).as_py():
        raise column_error(column.name, column.type, _OTHER_SETTINGS)
    return cells


def copy_lines(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Return rows as lines of COPY text, given the escaped values by column; a NULL is two characters."""
    return pc.binary_join_element_wise(
        *(column.cast(pa.binary()) for column in columns[:-1]),
        pc.binary_join_element_wise(columns[-1].cast(pa.binary()), pa.scalar(b"\n"), b""), b"\t",
    )


def escaped(texts: pa.StringArray) -> pa.BinaryArray:
    """Return values with COPY's escapes, NULL as its two characters."""
    if pc.any(pc.match_substring_regex(texts, "[\\\\\b\f\n\r\t\v]")).as_py():
        texts = pc.replace_substring(texts, "\\", "\\\\")
        for character, escape in _ESCAPES.items():
            texts = pc.replace_substring(texts, character, escape)
    return pc.fill_null(texts.cast(pa.binary()), _NULL)
