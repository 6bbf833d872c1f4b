"""For each MySQL type how the binlog stores its values, and who reads them.

Asked by ``binlog_rows`` once a column. Promises that a spelling ``formats.mysql_types`` knows is either read to its
canonical text or refused by name. Layout: MySQL's source, ``Field::pack`` and ``calc_field_size``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import IPv4Address
from itertools import groupby

import numpy as np
import pyarrow as pa

from dblake.decode import mysql_numbers as numbers
from dblake.decode import mysql_times as times
from dblake.decode.mysql_cells import Cells, Text, fixed
from dblake.decode.mysql_json import json_text
from dblake.decode.mysql_text import hexed, padded, transcoded
from dblake.formats.mysql_types import FIXED, MysqlType, parse, set_bytes

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_LONG = {"tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4, "tinyblob": 1, "blob": 2, "mediumblob": 3,
         "longblob": 4, "json": 4, "geometry": 4, "vector": 4}
# Bytes of the whole seconds, fractions come behind them.
_WHOLE = {"timestamp": (4, times.timestamp), "datetime": (5, times.datetime), "time": (3, times.time)}
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


@dataclass(frozen=True, slots=True)
class Stored:
    """``width`` is that of a value, or of the length before it if ``varies``."""

    width: int
    varies: bool
    read: Callable[[Cells], Text]


@lru_cache(maxsize=4096)
def stored(spelling: str) -> Stored:
    """How a column so spelled is stored. Raises Unsupported for a spelling that is none."""
    column = parse(spelling)
    name = column.name
    if name in _INTEGERS:
        width = _INTEGERS[name]
        return Stored(width, False, partial(numbers.integer, width=width, unsigned=column.unsigned))
    if name in _LONG:
        return Stored(_LONG[name], True, _long(column))
    if name in ("char", "varchar"):
        return Stored(_length_of(column.max_bytes), True, partial(_characters, charset=column.charset))
    if name == "varbinary":
        return Stored(_length_of(column.size), True, _hex)
    if name == "binary":
        return Stored(_length_of(column.size), True, partial(_binary, width=column.size))
    if name in FIXED:
        return Stored(1, True, _uuid if name == "uuid" else partial(_address, width=FIXED[name]))
    return _narrow(column)


def _narrow(column: MysqlType) -> Stored:
    """Types of one width."""
    name, size = column.name, column.size
    if column.old:
        return {"timestamp": Stored(4, False, times.old_timestamp), "datetime": Stored(8, False, times.old_datetime),
                "time": Stored(3, False, times.old_time)}[name]
    if name in ("timestamp", "datetime", "time"):
        whole, read = _WHOLE[name]
        return Stored(whole + times.fraction_bytes(size), False, partial(read, fraction=size))
    if name == "decimal":
        read_decimal = partial(numbers.decimal, precision=size, scale=column.scale)
        return Stored(numbers.decimal_bytes(size, column.scale), False, read_decimal)
    if name == "bit":
        return Stored((size + 7) // 8, False, partial(numbers.bits, width=size))
    if name == "enum":
        return Stored(1 if len(column.labels) < 256 else 2, False, partial(numbers.enum, labels=column.labels))
    if name == "set":
        width = set_bytes(len(column.labels))
        return Stored(width, False, partial(numbers.members, labels=column.labels, width=width))
    return {
        "float": Stored(4, False, partial(numbers.real, width=4)),
        "double": Stored(8, False, partial(numbers.real, width=8)),
        "year": Stored(1, False, numbers.year), "date": Stored(3, False, times.date),
    }[name]


def _length_of(most: int) -> int:
    return 1 if most < 256 else 2


def _long(column: MysqlType) -> Callable[[Cells], Text]:
    if column.name == "json":
        return json_text
    return partial(_characters, charset=column.charset) if column.charset else _hex


def _characters(cells: Cells, charset: str) -> Text:
    return transcoded(cells.raw(), charset)


def _hex(cells: Cells) -> Text:
    return Text(hexed(cells.raw()))


def _binary(cells: Cells, width: int) -> Text:
    raw, wrong = padded(cells, width)
    return Text(hexed(raw), wrong=wrong)


def _uuid(cells: Cells) -> Text:
    raw, wrong = padded(cells, FIXED["uuid"])
    digits = _HEX[np.frombuffer(raw.buffers()[2], np.uint8)].view(np.uint8).reshape(-1, 32)
    dash = np.full((len(cells), 1), ord("-"), np.uint8)
    parts = [digits[:, :8], digits[:, 8:12], digits[:, 12:16], digits[:, 16:20], digits[:, 20:]]
    return Text(fixed(np.hstack([piece for part in parts for piece in (part, dash)][:-1])), wrong=wrong)


def _address(cells: Cells, width: int) -> Text:
    """Addresses, each distinct one once."""
    raw, wrong = padded(cells, width)
    distinct = raw.dictionary_encode()
    read = _ipv4 if width == FIXED["inet4"] else _ipv6
    return Text(pa.array(map(read, distinct.dictionary.to_pylist()), pa.string()).take(distinct.indices), wrong=wrong)


def _ipv4(value: bytes) -> str:
    return str(IPv4Address(value))


def _ipv6(value: bytes) -> str:
    """As MariaDB prints it: the first of the longest runs of zeros is left out, even if it is a single one, and
    addresses that hold one of IPv4 end with that."""
    words = struct.unpack(">8H", value)
    zeros = max((len(list(run)) for zero, run in groupby(words, key=lambda word: word == 0) if zero), default=0)
    if not zeros:
        return ":".join(f"{word:x}" for word in words)
    start = next(at for at in range(8) if words[at : at + zeros] == (0,) * zeros)
    if start == 0 and (zeros == 6 or (zeros == 5 and words[5] == 0xFFFF)):
        return ("::" if zeros == 6 else "::ffff:") + _ipv4(value[12:])
    before, behind = (":".join(f"{word:x}" for word in part) for part in (words[:start], words[start + zeros :]))
    return f"{before}::{behind}"
