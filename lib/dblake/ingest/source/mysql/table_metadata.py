"""The optional metadata of a TABLE_MAP event: what ``binlog_row_metadata=FULL`` adds to the types of columns.

Place: below ``table_map``. Guarantee: each fact of the event is an entry by the column's number; a missing fact has no
entry. Lists of the event concern only the columns of some types, in their order: signs belong to numbers, labels to
enums or sets.

Layout: ``Table_map_event::Optional_metadata_fields`` in MySQL's documentation of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pymysqlreplication.constants import FIELD_TYPE

from dblake.ingest.source.mysql.column_types import VECTOR
from dblake.ingest.source.mysql.length_encoded import read_labels, read_numbers, read_packed, read_strings

BLOBS = (FIELD_TYPE.TINY_BLOB, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB, FIELD_TYPE.BLOB)
_HAS_SIGN = {
    FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR,
    FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.NEWDECIMAL,
}  # fmt: skip
"""Types that have an entry in the list of signs."""
_CHARACTER = {FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, *BLOBS}

# Types of the fields.
(_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS, _, _KEY, _PREFIX_KEY, _LABELS_CHARSET,
 _LABELS_CHARSETS, _, _DIMENSIONS) = range(1, 14)


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """Facts by the number of a column; a column without an entry has no such fact, or the event leaves it out."""

    names: Mapping[int, str]
    signs: Mapping[int, bool]
    """True for unsigned."""
    collations: Mapping[int, int]
    labels: Mapping[int, tuple[bytes, ...]]
    dimensions: Mapping[int, int]
    keys: Mapping[int, int]
    """The column's number in the primary key, from 1."""


def read_metadata(data: bytes, types: Sequence[int], *, mariadb: bool) -> ColumnMetadata:
    """Read the fields behind the columns of a TABLE_MAP event; ``types`` are the columns' real types."""
    fields = dict(_read_fields(data))

    def numbers_of(kinds: Set[int]) -> list[int]:
        return [number for number, type_ in enumerate(types) if type_ in kinds]

    enums, sets = numbers_of({FIELD_TYPE.ENUM}), numbers_of({FIELD_TYPE.SET})
    characters = numbers_of(_CHARACTER | {FIELD_TYPE.GEOMETRY} if mariadb else _CHARACTER)
    names = read_strings(fields.get(_NAMES, b""))
    keys = read_numbers(fields.get(_KEY, b"")) or read_numbers(fields.get(_PREFIX_KEY, b""))[::2]
    return ColumnMetadata(
        names=dict(zip(range(len(types)), map(bytes.decode, names), strict=True)) if _NAMES in fields else {},
        signs=dict(zip(numbers_of(_HAS_SIGN), _high_bits(fields.get(_SIGNS, b"")), strict=False)),
        collations=_collations(fields, _CHARSET, _CHARSETS, characters)
        | _collations(fields, _LABELS_CHARSET, _LABELS_CHARSETS, sorted(enums + sets)),
        labels=dict(zip(enums, read_labels(fields.get(_ENUM_LABELS, b"")), strict=False))
        | dict(zip(sets, read_labels(fields.get(_SET_LABELS, b"")), strict=False)),
        dimensions=dict(zip(numbers_of({VECTOR}), read_numbers(fields.get(_DIMENSIONS, b"")), strict=False)),
        keys={column: number for number, column in enumerate(keys, 1)},
    )


def _read_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each field."""
    offset = 0
    while offset < len(data):
        kind = data[offset]
        size, offset = read_packed(data, offset + 1)
        yield kind, data[offset : offset + size]
        offset += size


def _collations(fields: Mapping[int, bytes], default: int, each: int, columns: list[int]) -> dict[int, int]:
    """Return the collation of each column, from a default with exceptions or from a list of all."""
    if default in fields:
        usual, *pairs = read_numbers(fields[default])
        other = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {column: other.get(n, usual) for n, column in enumerate(columns)}
    return dict(zip(columns, read_numbers(fields.get(each, b"")), strict=False))


def _high_bits(data: bytes) -> list[bool]:
    return [bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1)]
