"""Rows events and result rows as MySQL sends them, made of canonical text: what decoding must give back.

Written from the layouts alone, one value at a time, and shares nothing with ``dblake.decode``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

Row = Sequence[str | None]

WRITE, UPDATE, DELETE = 30, 31, 32
TABLE_ID = 1234
_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_PREFIX = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_CODECS = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "latin1": "cp1252", "gbk": "gbk", "utf16": "utf-16-be"}
_MOST = {"utf8mb4": 4, "utf8mb3": 3, "latin1": 1, "gbk": 2, "utf16": 4}
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_HEADER = struct.Struct("<IBIIIH")


def rows_event(
    number: int, types: Sequence[str], images: Sequence[Row], *, before: Sequence[bool] | None = None,
    after: Sequence[bool] | None = None, extra: bytes = b"",
) -> bytes:
    """One event: its images in turn (before and after for updates), each a whole row in text.

    ``before`` and ``after`` mark the present columns; the others' texts are not sent. Below 30 it is version 1.
    """
    every = [True] * len(types)
    update = number in (UPDATE, 24)
    first = (before if update or number in (DELETE, 25) else after) or every
    maps = [first, after or every] if update else [first]
    body = TABLE_ID.to_bytes(6, "little") + b"\x01\x00"
    if number >= WRITE:
        body += struct.pack("<H", 2 + len(extra)) + extra
    body += length(len(types)) + b"".join(map(_bitmap, maps))
    for index, image in enumerate(images):
        body += _image(types, image, maps[index % len(maps)])
    return _HEADER.pack(1_700_000_000, number, 7, 19 + len(body) + 4, 4711, 0) + body


def result_row(values: Sequence[bytes | None]) -> bytes:
    """A row of the text protocol."""
    return b"".join(b"\xfb" if value is None else length(len(value)) + value for value in values)


def length(number: int) -> bytes:
    """A number as the protocol writes lengths."""
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + struct.pack("<H", number)
    return b"\xfd" + number.to_bytes(3, "little") if number < 1 << 24 else b"\xfe" + struct.pack("<Q", number)


def _bitmap(bits: Sequence[bool]) -> bytes:
    number = sum(1 << index for index, bit in enumerate(bits) if bit)
    return number.to_bytes((len(bits) + 7) // 8, "little")


def _image(types: Sequence[str], row: Row, present: Sequence[bool]) -> bytes:
    sent = [(spelling, value) for spelling, value, here in zip(types, row, present, strict=True) if here]
    values = b"".join(stored(spelling, value) for spelling, value in sent if value is not None)
    return _bitmap([value is None for _, value in sent]) + values


def stored(spelling: str, text: str) -> bytes:
    """A value as it stands in a row; JSON and geometry are given as hex."""
    spelling, _, charset = spelling.partition(" character set ")
    name = re.split(r"[( ]", spelling)[0]
    sizes = [int(n) for n in re.findall(r"\d+", spelling)] if name not in ("enum", "set") else []
    if name in _INTEGERS:
        return int(text).to_bytes(_INTEGERS[name], "little", signed="unsigned" not in spelling)
    if name in ("enum", "set"):
        labels = re.findall(r"'([^']*)'", spelling)
        return _enum(text, labels) if name == "enum" else _set(text, labels)
    if name in ("float", "double"):
        return struct.pack("<f" if name == "float" else "<d", float(text))
    if name == "decimal":
        return _decimal(text, *sizes)
    if name == "bit":
        return int(text, 2).to_bytes((sizes[0] + 7) // 8, "big")
    if name == "year":
        return bytes([int(text) - 1900 if int(text) else 0])
    if name in ("date", "datetime", "timestamp", "time"):
        return _moment(name, text, sizes[0] if sizes and "mariadb" not in spelling else 0)
    value = text.encode(_CODECS[charset]) if charset else bytes.fromhex(text.removeprefix("\\x"))
    if name in ("char", "varchar", "binary", "varbinary"):
        if name == "binary":
            value = value.rstrip(b"\0")
        most = sizes[0] * _MOST.get(charset, 1)
        return len(value).to_bytes(1 if most < 256 else 2, "little") + value
    prefix = 4 if name in ("json", "geometry") else _PREFIX[re.sub("text|blob", "", name)]
    return len(value).to_bytes(prefix, "little") + value


def _enum(text: str, labels: Sequence[str]) -> bytes:
    return (labels.index(text) + 1 if text else 0).to_bytes(1 if len(labels) < 256 else 2, "little")


def _set(text: str, labels: Sequence[str]) -> bytes:
    width = (len(labels) + 7) // 8
    bits = sum(1 << labels.index(label) for label in text.split(",") if label)
    return bits.to_bytes(width if width <= 4 else 8, "little")


def _decimal(text: str, precision: int, scale: int) -> bytes:
    whole, _, fraction = text.removeprefix("-").partition(".")
    whole = whole.rjust(precision - scale, "0")[max(len(whole) - (precision - scale), 0) :]
    lead = len(whole) % 9
    words = [whole[:lead], *(whole[at : at + 9] for at in range(lead, len(whole), 9))] if lead else [
        whole[at : at + 9] for at in range(0, len(whole), 9)]
    words += [fraction[at : at + 9] for at in range(0, scale, 9)]
    out = bytearray(b"".join(int(word).to_bytes(_DECIMAL_BYTES[len(word)], "big") for word in words))
    if text.startswith("-"):
        out = bytearray(byte ^ 0xFF for byte in out)
    out[0] ^= 0x80
    return bytes(out)


def _moment(name: str, text: str, fraction: int) -> bytes:
    tail = (fraction + 1) // 2
    whole, _, decimals = text.removeprefix("-").partition(".")
    part = int(decimals.ljust(2 * tail, "0")) if tail else 0
    numbers = [int(n) for n in re.findall(r"\d+", whole)]
    if name == "date":
        return (numbers[0] << 9 | numbers[1] << 5 | numbers[2]).to_bytes(3, "little")
    if name == "time":
        size = (numbers[0] << 12 | numbers[1] << 6 | numbers[2]) << 8 * tail | part
        return ((0x800000 << 8 * tail) + (-size if text.startswith("-") else size)).to_bytes(3 + tail, "big")
    year, month, day, hour, minute, second = numbers
    if name == "datetime":
        days, clock = (year * 13 + month) << 5 | day, hour << 12 | minute << 6 | second
        return (0x8000000000 + (days << 17 | clock)).to_bytes(5, "big") + part.to_bytes(tail, "big")
    seconds = 0
    if year:
        leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
        past = [31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30]
        days = 365 * (year - 1970) + (year - 1969) // 4 - (year - 1901) // 100 + (year - 1601) // 400
        seconds = (days + sum(past[: month - 1]) + day - 1) * 86400 + hour * 3600 + minute * 60 + second
    return seconds.to_bytes(4, "big") + part.to_bytes(tail, "big")
