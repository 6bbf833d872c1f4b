"""TABLE_MAP events: the table that the rows events behind them refer to, and its columns as the log describes them.

Promises the columns of the event in its order, and None for what the event leaves out: with
``binlog_row_metadata=FULL`` it has names, signs, character sets, labels and the primary key. Whether the table is
captured, and which schema it has, is left to ``relations``. Read here and not by mysql-replication's ``TableMapEvent``,
which knows no vectors, decodes labels as UTF-8 and rejects unknown types (decision 8).

Layout: ``Table_map_event`` in MySQL's documentation of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pymysqlreplication.constants import FIELD_TYPE

from dblake.formats.binlog import ROWS_HEADER_BYTES
from dblake.source.mysql.column_types import COMPRESSED_BLOB, COMPRESSED_VARCHAR, VECTOR
from dblake.source.mysql.events import read_packed

_BLOBS = (FIELD_TYPE.TINY_BLOB, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB, FIELD_TYPE.BLOB)
_HAS_SIGN = {
    FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR,
    FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.NEWDECIMAL,
}  # fmt: skip
"""Types that have an entry in the list of signs."""
_CHARACTER = {FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, *_BLOBS}
_META_BYTES = {
    **dict.fromkeys((
        FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, *_BLOBS, FIELD_TYPE.GEOMETRY, FIELD_TYPE.JSON, VECTOR,
        FIELD_TYPE.TIMESTAMP2, FIELD_TYPE.DATETIME2, FIELD_TYPE.TIME2, COMPRESSED_BLOB,
    ), 1),
    **dict.fromkeys((
        FIELD_TYPE.BIT, FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.NEWDECIMAL,
        FIELD_TYPE.ENUM, FIELD_TYPE.SET, COMPRESSED_VARCHAR,
    ), 2),
}  # fmt: skip
"""Bytes of metadata by type; 0 for all others."""

# Types of the optional metadata fields.
(_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS, _, _KEY, _PREFIX_KEY, _LABELS_CHARSET,
 _LABELS_CHARSETS, _, _DIMENSIONS) = range(1, 14)


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column as the log describes it. ``meta`` is the little-endian number of its metadata bytes."""

    name: str | None
    code: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] | None = None
    dimensions: int | None = None
    key: int | None = None
    """The column's number in the primary key, from 1."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the log describes it before each statement's rows."""

    schema_name: str
    table_name: str
    columns: tuple[MappedColumn, ...]


def read_names(body: bytes) -> tuple[str, str]:
    """Return the schema's and the table's name of a TABLE_MAP event's body."""
    schema, table, _ = _read_names(body)
    return schema, table


def read_table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """Return the table that a TABLE_MAP event's body describes."""
    schema, table, at = _read_names(body)
    count, at = read_packed(body, at)
    codes = body[at : at + count]
    size, at = read_packed(body, at + count)
    metas, meta_at = [], at
    for code in codes:
        width = _META_BYTES.get(code, 0)
        metas.append(int.from_bytes(body[meta_at : meta_at + width], "little"))
        meta_at += width
    at += size
    nullable = _low_bits(body[at : at + (count + 7) // 8], count)
    fields = dict(_read_fields(body, at + (count + 7) // 8))
    labeled = (FIELD_TYPE.ENUM, FIELD_TYPE.SET)
    real = [meta & 0xFF if code == FIELD_TYPE.STRING and meta & 0xFF in labeled else code
            for code, meta in zip(codes, metas, strict=True)]
    character = _CHARACTER | {FIELD_TYPE.GEOMETRY} if mariadb else _CHARACTER
    numeric, characters, enums, sets, vectors = (
        [n for n, code in enumerate(real) if code in kinds]
        for kinds in (_HAS_SIGN, character, {FIELD_TYPE.ENUM}, {FIELD_TYPE.SET}, {VECTOR})
    )
    signs = dict(zip(numeric, _high_bits(fields.get(_SIGNS, b"")), strict=False))
    collations = _collations(fields, _CHARSET, _CHARSETS, characters)
    collations |= _collations(fields, _LABELS_CHARSET, _LABELS_CHARSETS, sorted(enums + sets))
    labels = dict(zip(enums, _read_labels(fields.get(_ENUM_LABELS, b"")), strict=False))
    labels |= dict(zip(sets, _read_labels(fields.get(_SET_LABELS, b"")), strict=False))
    dimensions = dict(zip(vectors, _read_numbers(fields.get(_DIMENSIONS, b"")), strict=False))
    keys = _read_numbers(fields.get(_KEY, b"")) or _read_numbers(fields.get(_PREFIX_KEY, b""))[::2]
    number_in_key = {column: n + 1 for n, column in enumerate(keys)}
    names = _read_strings(fields[_NAMES]) if _NAMES in fields else [None] * count
    return TableMap(schema, table, tuple(
        MappedColumn(
            name.decode() if name is not None else None, code, metas[n], nullable[n], signs.get(n, False),
            collations.get(n), labels.get(n), dimensions.get(n), number_in_key.get(n),
        )
        for n, (name, code) in enumerate(zip(names, codes, strict=True))
    ))


def _read_names(body: bytes) -> tuple[str, str, int]:
    at = ROWS_HEADER_BYTES
    names = []
    for _ in range(2):
        size, at = read_packed(body, at)
        names.append(body[at : at + size].decode())
        at += size + 1
    return names[0], names[1], at


def _read_fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the optional metadata fields: type and content."""
    while at < len(body):
        kind = body[at]
        size, at = read_packed(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _collations(fields: Mapping[int, bytes], default: int, each: int, columns: list[int]) -> dict[int, int]:
    """Return the collation of each column, from a default with exceptions or from a list of all."""
    if default in fields:
        usual, *pairs = _read_numbers(fields[default])
        other = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {column: other.get(n, usual) for n, column in enumerate(columns)}
    return dict(zip(columns, _read_numbers(fields.get(each, b"")), strict=False))


def _read_numbers(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = read_packed(data, at)
        numbers.append(number)
    return numbers


def _read_strings(data: bytes) -> list[bytes]:
    strings, at = [], 0
    while at < len(data):
        size, at = read_packed(data, at)
        strings.append(data[at : at + size])
        at += size
    return strings


def _read_labels(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the labels of one column after another."""
    at = 0
    while at < len(data):
        count, at = read_packed(data, at)
        labels = []
        for _ in range(count):
            size, at = read_packed(data, at)
            labels.append(data[at : at + size])
            at += size
        yield tuple(labels)


def _low_bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[n >> 3] >> (n & 7) & 1) for n in range(count)]


def _high_bits(data: bytes) -> list[bool]:
    return [bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1)]
