"""Names and values in MySQL's and MariaDB's statements, made of names and canonical text.

A value becomes a constant of its column's own type, so that the server compares it as it orders the column and can use
the key; text that is no such value is a ValueError. FLOAT has no constants: no text that the server accepts is equal to
what a FLOAT column stores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

import pyarrow as pa

from dblake.formats.mysql_types import MysqlType, parse

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
            return str(_enum_number(column, value))
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


def canonical(type_: str, value: str) -> str:
    """Return the canonical text of a key value that the server printed as ``value`` (bytes as Latin-1)."""
    column = parse(type_)
    match column.name:
        case "bit":
            return "".join(f"{ord(byte):08b}" for byte in value)[-column.size :]
        case "double":
            return str(pa.scalar(float(value)).cast(pa.string()).as_py())
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            raw = value.encode("latin-1")
            return "\\x" + (raw.ljust(column.size, b"\0") if column.name == "binary" else raw).hex()
        case "year":
            return value.zfill(4)
        case "decimal":
            # ZEROFILL adds zeros in front.
            return re.sub(r"^(-?)0+(?=[0-9])", r"\1", value)
        case name if name in _INTEGERS:
            return str(int(value))
    return value


def after(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> str:
    """Return the condition of the rows behind a key; columns are given as name and type.

    Expanded column by column: for ``(a, b) > (1, 2)`` the servers read the table from its beginning.
    """
    terms: list[str] = []
    equal_so_far: list[str] = []
    for (name, type_), value in zip(columns, key, strict=True):
        terms.append(" AND ".join([*equal_so_far, _greater(name, type_, value)]))
        equal_so_far.append(f"{identifier(name)} = {literal(type_, value)}")
    return " OR ".join(f"({term})" for term in terms)


def upto(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> str:
    """Return the condition of the row with a key and of those before it; the first column is an integer."""
    (name, type_), *_ = columns
    return f"{identifier(name)} <= {literal(type_, key[0])} AND NOT ({after(columns, key)})"


def equal(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> str:
    """Return the condition of the one row with a key."""
    parts = [f"{identifier(n)} = {literal(t, value)}" for (n, t), value in zip(columns, key, strict=True)]
    return f"({' AND '.join(parts)})"


def _greater(name: str, type_: str, value: str) -> str:
    column = parse(type_)
    if column.name != "enum":
        return f"{identifier(name)} > {literal(type_, value)}"
    # An enum is ordered by number but compared as text: only a list of the later numbers uses the key.
    rest = range(_enum_number(column, value) + 1, len(column.labels) + 1)
    return f"{identifier(name)} IN ({', '.join(map(str, rest))})" if rest else "FALSE"


def _enum_number(column: MysqlType, label: str) -> int:
    return _label_number(column, label) + 1 if label else 0


def _label_number(column: MysqlType, label: str) -> int:
    if "" in column.labels:
        raise ValueError("an empty label cannot be distinguished from no label")
    return column.labels.index(label)


def _checked(pattern: re.Pattern[str], value: str) -> str:
    if not pattern.fullmatch(value):
        raise ValueError("not a value of its column's type")
    return value
