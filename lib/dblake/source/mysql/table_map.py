"""TABLE_MAP events: which table the rows events after it mean, and what its columns are.

Promises the columns as the event describes them, in its order; whether the table is captured, and what its schema is
called, is left to ``relations``. With ``binlog_row_metadata=FULL`` the event has names, signs, character sets, labels
and the primary key; without it names are missing, which is told and not guessed.

Layout: ``Table_map_event`` in MySQL's documentation of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dblake.source.mysql.events import packed

_FLOAT, _DOUBLE, _VARCHAR, _BIT, _VECTOR, _JSON, _DECIMAL, _ENUM, _SET = 4, 5, 15, 16, 242, 245, 246, 247, 248
_BLOBS, _STRING, _GEOMETRY = (249, 250, 251, 252), 254, 255
_NUMERIC = {1, 2, 3, 8, 9, 13, _FLOAT, _DOUBLE, _DECIMAL}
"""Whose sign the event tells."""
_CHARACTER = {_VARCHAR, 253, _STRING, *_BLOBS}
_META_BYTES = {
    _FLOAT: 1, _DOUBLE: 1, **dict.fromkeys((_BIT, _VARCHAR, 253, _STRING, _DECIMAL, _ENUM, _SET, 141), 2),
    **dict.fromkeys((*_BLOBS, _GEOMETRY, _JSON, _VECTOR, 17, 18, 19, 140), 1),
}  # fmt: skip

(_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS, _, _KEY, _PREFIX_KEY, _LABELS_CHARSET,
 _LABELS_CHARSETS, _, _DIMENSIONS) = range(1, 14)


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column as the log has it. ``meta`` is the little-endian number of its metadata bytes."""

    name: str | None
    code: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] | None = None
    dimensions: int | None = None
    key: int | None = None
    """Its place in the primary key, from 1."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the log describes it before each statement's rows."""

    schema_name: str
    table_name: str
    columns: tuple[MappedColumn, ...]


def names(body: bytes) -> tuple[str, str]:
    """The schema's and the table's name of a TABLE_MAP event's body."""
    schema, table, _ = _names(body)
    return schema, table


def table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """Reads a TABLE_MAP event's body."""
    schema, table, at = _names(body)
    count, at = packed(body, at)
    codes = body[at : at + count]
    size, at = packed(body, at + count)
    metas, place = [], at
    for code in codes:
        width = _META_BYTES.get(code, 0)
        metas.append(int.from_bytes(body[place : place + width], "little"))
        place += width
    at += size
    nullable = _low_bits(body[at : at + (count + 7) // 8], count)
    said = dict(_fields(body, at + (count + 7) // 8))
    real = [meta & 0xFF if code == _STRING and meta & 0xFF in (_ENUM, _SET) else code
            for code, meta in zip(codes, metas, strict=True)]
    text = _CHARACTER | {_GEOMETRY} if mariadb else _CHARACTER
    numeric, characters, enums, sets, vectors = (
        [n for n, code in enumerate(real) if code in kind]
        for kind in (_NUMERIC, text, {_ENUM}, {_SET}, {_VECTOR})
    )
    signs = dict(zip(numeric, _high_bits(said.get(_SIGNS, b"")), strict=False))
    collations = _collations(said, _CHARSET, _CHARSETS, characters)
    collations |= _collations(said, _LABELS_CHARSET, _LABELS_CHARSETS, sorted(enums + sets))
    labels = dict(zip(enums, _labels(said.get(_ENUM_LABELS, b"")), strict=False))
    labels |= dict(zip(sets, _labels(said.get(_SET_LABELS, b"")), strict=False))
    dimensions = dict(zip(vectors, _numbers(said.get(_DIMENSIONS, b"")), strict=False))
    keys = _numbers(said.get(_KEY, b"")) or _numbers(said.get(_PREFIX_KEY, b""))[::2]
    place_in_key = {column: n + 1 for n, column in enumerate(keys)}
    called = _strings(said[_NAMES]) if _NAMES in said else [None] * count
    return TableMap(schema, table, tuple(
        MappedColumn(
            name.decode() if name is not None else None, code, metas[n], nullable[n], signs.get(n, False),
            collations.get(n), labels.get(n), dimensions.get(n), place_in_key.get(n),
        )
        for n, (name, code) in enumerate(zip(called, codes, strict=True))
    ))


def _names(body: bytes) -> tuple[str, str, int]:
    at = 8
    found = []
    for _ in range(2):
        size, at = packed(body, at)
        found.append(body[at : at + size].decode())
        at += size + 1
    return found[0], found[1], at


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        kind = body[at]
        size, at = packed(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _collations(said: Mapping[int, bytes], default: int, each: int, columns: list[int]) -> dict[int, int]:
    """The collation of each of some columns: one for all but those listed, or a list of all."""
    if default in said:
        usual, *pairs = _numbers(said[default])
        other = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {column: other.get(n, usual) for n, column in enumerate(columns)}
    return dict(zip(columns, _numbers(said.get(each, b"")), strict=False))


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = packed(data, at)
        found.append(number)
    return found


def _strings(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = packed(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def _labels(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """The labels of one column after another."""
    at = 0
    while at < len(data):
        count, at = packed(data, at)
        labels = []
        for _ in range(count):
            size, at = packed(data, at)
            labels.append(data[at : at + size])
            at += size
        yield tuple(labels)


def _low_bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[n >> 3] >> (n & 7) & 1) for n in range(count)]


def _high_bits(data: bytes) -> list[bool]:
    return [bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1)]
