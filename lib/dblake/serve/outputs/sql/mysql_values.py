"""The source's texts → the values that PyMySQL sends for a column of a MySQL or MariaDB target.

Place: below ``mysql``. Guarantee: a text that the column's type cannot hold is rejected, never cut or changed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from dblake.serve.outputs.sql.errors import ValueRejected

_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\+00")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?")


def converted(values: Sequence[Any], convert: Callable[[str], object], column: int) -> list[object]:
    """Return texts as the driver's values. Raises ValueRejected for the first one that the column cannot hold."""
    out: list[object] = []
    try:
        out.extend(None if value is None else convert(value) for value in values)
    except ValueError as error:
        raise ValueRejected("a value that the target's column cannot hold", column, len(out)) from error
    return out


def converter(kind: str) -> Callable[[str], object] | None:
    """Return what makes of a source's text the driver's value for a column of a type; None: the text itself."""
    name = kind.partition("(")[0]
    if name.endswith(("blob", "binary")):
        return _to_bytes
    if name == "bit":
        return lambda text: int(text, 2)
    if name in ("datetime", "timestamp", "date"):
        return _to_time
    if kind == "tinyint(1)":
        return _to_boolean
    if name == "float":
        return _to_float
    return _to_finite if name in ("double", "decimal") else None


def _to_bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError
    return bytes.fromhex(text[2:])


def _to_time(text: str) -> str:
    match = _INSTANT.fullmatch(text)
    if match:
        return match[1]
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError
    return text


def _to_boolean(text: str) -> int:
    values = {"t": 1, "f": 0, "true": 1, "false": 0}
    return values[text] if text in values else int(text)


def _to_float(text: str) -> str:
    """Return all digits of a float: the largest one, in its shortest form, is beyond what the server accepts."""
    return repr(struct.unpack("f", struct.pack("f", float(_to_finite(text))))[0])


def _to_finite(text: str) -> str:
    if text.lstrip("-+").lower() in ("nan", "inf", "infinity"):
        raise ValueError
    return text
