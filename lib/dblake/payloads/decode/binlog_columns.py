"""Map each MySQL type to its storage in the binlog and to the function that reads its values.

Called by ``binlog_rows`` once per column. Guarantee: a spelling of ``formats.mysql_types`` is read to its
canonical text or rejected by name. Layout: MySQL's source, ``Field::pack`` and ``calc_field_size``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from dblake.payloads.decode import mysql_numbers as numbers
from dblake.payloads.decode import mysql_times as times
from dblake.payloads.decode.mysql_addresses import read_address, read_uuid
from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.mysql_json import json_text
from dblake.payloads.decode.mysql_text import padded, to_hex, to_utf8
from dblake.payloads.decode.mysql_time_text import fraction_bytes
from dblake.payloads.formats.mysql_types import FIXED, MysqlType, parse, set_bytes

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_LONG = {"tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4, "tinyblob": 1, "blob": 2, "mediumblob": 3,
         "longblob": 4, "json": 4, "geometry": 4, "vector": 4}
_WHOLE = {"timestamp": (4, times.timestamp), "datetime": (5, times.datetime), "time": (3, times.time)}
"""Bytes of the whole seconds, before the fraction."""


@dataclass(frozen=True, slots=True)
class CellStorage:
    """A column's storage. ``width`` is the bytes of a value, or of the length before it if ``is_variable``."""

    width: int
    is_variable: bool
    read: Callable[[Cells], Text]


@lru_cache(maxsize=4096)
def column_storage(spelling: str) -> CellStorage:
    """Return how a column of this type is stored. Raises Unsupported for an unknown spelling."""
    column = parse(spelling)
    name = column.name
    if name in _INTEGERS:
        width = _INTEGERS[name]
        return CellStorage(width, False, partial(numbers.integer, width=width, unsigned=column.unsigned))
    if name in _LONG:
        return CellStorage(_LONG[name], True, _long_reader(column))
    if name in ("char", "varchar"):
        return CellStorage(_length_bytes(column.max_bytes), True, partial(_read_characters, charset=column.charset))
    if name == "varbinary":
        return CellStorage(_length_bytes(column.size), True, _read_bytes)
    if name == "binary":
        return CellStorage(_length_bytes(column.size), True, partial(_read_binary, width=column.size))
    if name in FIXED:
        return CellStorage(1, True, read_uuid if name == "uuid" else partial(read_address, width=FIXED[name]))
    return _fixed_storage(column)


def _fixed_storage(column: MysqlType) -> CellStorage:
    """Return the storage of a type whose values have one size."""
    name, size = column.name, column.size
    if column.old:
        return {
            "timestamp": CellStorage(4, False, times.old_timestamp),
            "datetime": CellStorage(8, False, times.old_datetime),
            "time": CellStorage(3, False, times.old_time),
        }[name]
    if name in ("timestamp", "datetime", "time"):
        whole, read = _WHOLE[name]
        return CellStorage(whole + fraction_bytes(size), False, partial(read, fraction=size))
    if name == "decimal":
        read_decimal = partial(numbers.decimal, precision=size, scale=column.scale)
        return CellStorage(numbers.decimal_bytes(size, column.scale), False, read_decimal)
    if name == "bit":
        return CellStorage((size + 7) // 8, False, partial(numbers.bits, width=size))
    if name == "enum":
        return CellStorage(1 if len(column.labels) < 256 else 2, False, partial(numbers.enum, labels=column.labels))
    if name == "set":
        width = set_bytes(len(column.labels))
        return CellStorage(width, False, partial(numbers.members, labels=column.labels, width=width))
    return {
        "float": CellStorage(4, False, partial(numbers.real, width=4)),
        "double": CellStorage(8, False, partial(numbers.real, width=8)),
        "year": CellStorage(1, False, numbers.year), "date": CellStorage(3, False, times.date),
    }[name]


def _length_bytes(max_bytes: int) -> int:
    return 1 if max_bytes < 256 else 2


def _long_reader(column: MysqlType) -> Callable[[Cells], Text]:
    if column.name == "json":
        return json_text
    return partial(_read_characters, charset=column.charset) if column.charset else _read_bytes


def _read_characters(cells: Cells, charset: str) -> Text:
    return to_utf8(cells.raw(), charset)


def _read_bytes(cells: Cells) -> Text:
    return Text(to_hex(cells.raw()))


def _read_binary(cells: Cells, width: int) -> Text:
    raw, wrong = padded(cells, width)
    return Text(to_hex(raw), wrong=wrong)
