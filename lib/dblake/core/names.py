"""Names of tables, and the folders they live in.

Database names are arbitrary bytes; folder names are not. One rule turns the one into the other so that no two tables
share a folder, none leaves the warehouse and none can be taken for ``_delta_log``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".\s][^".]*)')
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST_FOLDER = 120
_NAMED = 10


def quote_part(part: str) -> str:
    """A name as it stands in ``table`` columns: bare if it is a plain lower-case word, else in double quotes."""
    return part if _PLAIN.match(part) else '"' + part.replace('"', '""') + '"'


def qualified(schema: str, table: str) -> str:
    """``schema.table`` as written in every ``table`` column, message and option."""
    return f"{quote_part(schema)}.{quote_part(table)}"


def split_qualified(name: str) -> tuple[str, str]:
    """The schema and the table of a qualified name, unquoted. Raises ValueError if it is not ``schema.table``."""
    parts, rest = [], name
    while True:
        match = _PART.match(rest)
        if not match:
            raise ValueError(f"not a schema.table name: {name}")
        parts.append(match[1].replace('""', '"') if match[1] is not None else match[2])
        rest = rest[match.end() :]
        if not rest:
            break
        if not rest.startswith("."):
            raise ValueError(f"not a schema.table name: {name}")
        rest = rest[1:]
    if len(parts) != 2:
        raise ValueError(f"not a schema.table name: {name}")
    return parts[0], parts[1]


def folder(name: str) -> str:
    """The folder of a schema or table, one for one: unsafe bytes become ``~`` and two hex digits.

    Names whose folder would pass 120 characters keep 100 of them, ``~~`` and 16 digits of the name's SHA-256.
    """
    raw = name.encode("utf-8")
    out = "".join(
        chr(byte) if byte in _SAFE and not (index == 0 and byte in b"_-") else f"~{byte:02x}"
        for index, byte in enumerate(raw)
    )
    if len(out) > _LONGEST_FOLDER:
        return out[:100] + "~~" + hashlib.sha256(raw).hexdigest()[:16]
    return out


def abbreviated(names: Sequence[str]) -> str:
    """The first few of many names, for a message."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class TableFilter:
    """Which tables are captured: globs on ``schema.table``, case-sensitive; ``!`` takes tables out again.

    A part in double quotes is taken literally, so that names with dots, quotes or stars can be meant.
    """

    def __init__(self, patterns: list[str]) -> None:
        self._wanted = [self._split(p) for p in patterns if not p.startswith("!")]
        self._unwanted = [self._split(p[1:]) for p in patterns if p.startswith("!")]

    @staticmethod
    def _split(pattern: str) -> tuple[str, str]:
        match = _PART.match(pattern)
        if not match or pattern[match.end() : match.end() + 1] != ".":
            raise ValueError(f"not a schema.table pattern: {pattern}")
        rest = pattern[match.end() + 1 :]
        last = _PART.fullmatch(rest)
        if not last:
            raise ValueError(f"not a schema.table pattern: {pattern}")
        literal = ["".join(f"[{c}]" if c in "*?[" else c for c in m[1].replace('""', '"')) if m[1] is not None
                   else m[2] for m in (match, last)]
        return literal[0], literal[1]

    def __call__(self, schema: str, table: str) -> bool:
        def hit(patterns: list[tuple[str, str]]) -> bool:
            return any(fnmatchcase(schema, s) and fnmatchcase(table, t) for s, t in patterns)

        return hit(self._wanted) and not hit(self._unwanted)
