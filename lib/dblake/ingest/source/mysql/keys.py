"""Keys of a table: conditions on them, for the rows that a chunk reads, and their canonical text.

Place: between ``sql_literals``, which spells a value, and ``chunks``. Guarantee: a condition selects in the server's
own order of the key, and the server can use the key for it; the canonical text of a key is the one that events have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from dblake.ingest.source.mysql.sql_literals import INTEGERS, enum_number, identifier, literal
from dblake.payloads.formats.mysql_types import parse


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
    rest = range(enum_number(column, value) + 1, len(column.labels) + 1)
    return f"{identifier(name)} IN ({', '.join(map(str, rest))})" if rest else "FALSE"


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
        case name if name in INTEGERS:
            return str(int(value))
    return value
