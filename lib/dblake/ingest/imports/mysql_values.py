"""Values of files as the bytes that MySQL's text protocol sends for a column, and rows of them as its result rows.

Guarantee: decoding a row gives the text that a chunk read of the same values gives. OUTFILE text, which ``mysqldump``
writes, has each column's bytes in its own character set, as the protocol has; a type that it does not hold exactly is
rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.imports import text_values as convert
from dblake.ingest.imports.errors import column_error
from dblake.payloads.formats.mysql_charsets import CHARSETS
from dblake.payloads.formats.mysql_types import MysqlType, parse

_NULL = b"\xfb"
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "vector")
AMBIGUOUS_CHARSETS = ("big5", "cp932", "gb18030", "gbk", "sjis", "ucs2", "utf16", "utf16le", "utf32")
"""Character sets in which a character of several bytes may contain a tab, a newline or a backslash."""
_EXACT = {
    "date": r"^\d{4}-\d\d-\d\d$", "datetime": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d%s$",
    "timestamp": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d%s$", "time": r"^-?\d{2,3}:\d\d:\d\d%s$",
}
"""What the server writes; text of another form is converted."""


def to_bytes(values: pa.Array, column: Column) -> pa.BinaryArray:
    """Return a column's values as the server sends them. Raises Unsupported for values of another type."""
    type_ = parse(column.type)
    try:
        return _convert(values, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise column_error(column.name, column.type, "it has a value that is not one of this type") from error
    except UnicodeEncodeError as error:
        problem = f"it has a character that {type_.charset} does not have"
        raise column_error(column.name, column.type, problem) from error


def _convert(values: pa.Array, type_: MysqlType) -> pa.BinaryArray:
    name, is_text = type_.name, convert.is_text(values)
    if name in _INTEGERS:
        numbers = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        return convert.integers(numbers).cast(pa.binary())
    if name == "decimal":
        return convert.decimals(values, type_.scale).cast(pa.binary())
    if name in ("float", "double"):
        return convert.floats(values, single=name == "float").cast(pa.string()).cast(pa.binary())
    if name == "bit":
        return _bits(values, type_.size)
    if name in _BYTES:
        return convert.from_hex(values) if is_text else values.cast(pa.binary())
    if name in _EXACT:
        fraction = rf"\.\d{{{type_.size}}}" if type_.size else ""
        pattern = _EXACT[name].replace("%s", fraction)
        if is_text and convert.all_match(values, pattern):
            return values.cast(pa.string()).cast(pa.binary())
        convert_: Callable[[pa.Array], pa.StringArray] = {
            "date": convert.dates, "time": lambda each: convert.times(each, digits=type_.size),
        }.get(name, lambda each: convert.timestamps(each, digits=type_.size))
        return convert_(values).cast(pa.binary())
    return in_charset(values.cast(pa.string()), type_)


def _bits(values: pa.Array, width: int) -> pa.BinaryArray:
    """Return bits as bytes, highest first, of booleans, integers, or text of 0s and 1s."""
    size = (width + 7) // 8
    if convert.is_binary(values):
        return values.cast(pa.binary())
    if convert.is_text(values):
        if not convert.all_match(values, rf"^[01]{{{width}}}$"):
            raise pa.ArrowInvalid("not bits")
        padded = pc.utf8_lpad(pc.fill_null(values.cast(pa.string()), "0"), 8 * size, "0")
        flat = np.frombuffer("".join(padded.to_pylist()).encode(), np.uint8) - ord("0")
        raw = np.packbits(flat.reshape(-1, 8 * size), axis=1)
    else:
        numbers = pc.fill_null(values.cast(pa.uint64()), 0).to_numpy().astype(">u8")
        raw = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8)[:, 8 - size :])
    ends = np.arange(len(values) + 1, dtype=np.int32) * np.int32(size)
    out = pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(raw)])
    return pc.if_else(values.is_valid(), out, pa.scalar(None, pa.binary()))


def in_charset(texts: pa.StringArray, type_: MysqlType) -> pa.BinaryArray:
    """Return text in the column's character set; without the blanks behind ``char``, which the server does not send."""
    if type_.name == "char":
        texts = pc.utf8_rtrim(texts, " ")
    charset = CHARSETS[type_.charset or "utf8mb4"]
    is_wide = charset.codec.startswith(("utf-16", "utf-32"))
    if charset.codec == "utf-8" or (not is_wide and pc.all(pc.string_is_ascii(texts)).as_py() is not False):
        return texts.cast(pa.binary())
    distinct = texts.dictionary_encode()
    back = str.maketrans({to: of for of, to in charset.differs.items()})
    encoded = [_encode(text.translate(back), charset.codec, controls=charset.controls)
               for text in distinct.dictionary.to_pylist()]
    return pa.array(encoded, pa.binary()).take(distinct.indices)


def _encode(text: str, codec: str, *, controls: bool) -> bytes:
    if not controls:
        return text.encode(codec)
    return b"".join(bytes([ord(each)]) if "\x80" <= each <= "\x9f" else each.encode(codec) for each in text)


def require_in_outfile(schema: TableSchema) -> None:
    """Raise Unsupported for a column whose values OUTFILE text does not hold exactly."""
    for column in schema.columns:
        type_ = parse(column.type)
        if type_.name == "float":
            raise column_error(column.name, column.type, "mysqldump writes six digits of it, so values are not exact")
        if type_.charset in AMBIGUOUS_CHARSETS:
            problem = "mysqldump does not escape its characters that contain the byte of a separator"
            raise column_error(column.name, column.type, problem)


def result_rows(columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Return rows of values as result rows of the text protocol: each value behind its length."""
    parts = [part for column in columns for part in (_lengths(column), pc.fill_null(column, b""))]
    return pc.binary_join_element_wise(*parts, b"")


def _lengths(column: pa.BinaryArray) -> pa.BinaryArray:
    lengths = pc.fill_null(pc.binary_length(column), -1).dictionary_encode()
    spelled = [_NULL if length < 0 else _length(length) for length in lengths.dictionary.to_pylist()]
    return pa.array(spelled, pa.binary()).take(lengths.indices)


def _length(length: int) -> bytes:
    if length < _NULL[0]:
        return bytes([length])
    for first, width in ((0xFC, 2), (0xFD, 3)):
        if length < 1 << 8 * width:
            return bytes([first]) + length.to_bytes(width, "little")
    return b"\xfe" + length.to_bytes(8, "little")
