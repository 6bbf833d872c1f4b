"""Names and values in MySQL's and MariaDB's statements, made of names and canonical text.

A value becomes a constant of its column's own type, so that the server compares it as it orders the column and can use
the key; text that is no such value is a ValueError. FLOAT has no constants: no text that the server accepts is equal to
what a FLOAT column stores.
"""

from __future__ import annotations

import re
from math import isfinite

from dblake.payloads.formats.mysql_types import MysqlType, parse

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_INTEGERS = (*INTEGERS, "year")
_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DOUBLE = re.compile(r"-?[0-9.]+([eE][-+]?[0-9]+)?")
_TEMPORAL = re.compile(r"-?[0-9:.]+|[0-9]+-[0-9]+-[0-9]+( [0-9:.]+)?")
_ADDRESS = re.compile(r"[0-9a-fA-F:.-]+")
_BITS = re.compile(r"[01]+")


def identifier(*parts: str) -> str:
    """Return a name in backticks, or several with dots between."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def text(value: str) -> str:
    """Return a constant of any text; compared by the collation of the column beside it."""
    return f"_utf8mb4 x'{value.encode().hex()}'"


def string(value: str) -> str:
    """Return text between quotes, for statements that a person reads. Valid in the connections' sql_mode."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def literal(type_: str, value: str) -> str:
    """Return a value's canonical text as a constant of its column's type. Raises ValueError for other text."""
    column = parse(type_)
    match column.name:
        case "enum":
            return str(enum_number(column, value))
        case "set":
            labels = value.split(",") if value else []
            return str(sum({1 << _label_number(column, label) for label in labels}))
        case "bit":
            return str(int(_checked(_BITS, value), 2))
        case "double":
            number = float(_checked(_DOUBLE, value))
            if not isfinite(number):
                raise ValueError("out of the range of DOUBLE")
            return f"{number:.17e}"
        case "decimal":
            return _checked(_DECIMAL, value)
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            if not value.startswith("\\x"):
                raise ValueError("not \\x and hex digits")
            return f"x'{bytes.fromhex(value[2:]).hex()}'"
        case "date" | "time" | "datetime" | "timestamp":
            return f"'{_checked(_TEMPORAL, value)}'"
        case "uuid" | "inet4" | "inet6":
            return f"'{_checked(_ADDRESS, value)}'"
        case name if name in _INTEGERS:
            return str(int(_checked(_INTEGER, value)))
        case _ if column.charset:
            return text(value)
    raise ValueError(f"type {column.name} has no constants")


def enum_number(column: MysqlType, label: str) -> int:
    """Return the number by which an enum is ordered: labels from 1, the empty value 0. Raises ValueError."""
    return _label_number(column, label) + 1 if label else 0


def _label_number(column: MysqlType, label: str) -> int:
    if "" in column.labels:
        raise ValueError("an empty label cannot be distinguished from no label")
    return column.labels.index(label)


def _checked(pattern: re.Pattern[str], value: str) -> str:
    if not pattern.fullmatch(value):
        raise ValueError("not a value of its column's type")
    return value
