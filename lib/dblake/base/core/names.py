"""Names of tables, and the folders that hold their data.

Guarantee: one rule maps every database name to a folder name, so that no two tables share a folder, no folder leaves
the warehouse, and none is mistaken for ``_delta_log``. Which folder lies where is for ``lake.layout``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".\s][^".]*)')
_SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_MAX_FOLDER_CHARACTERS = 120
_MAX_ABBREVIATED_NAMES = 10


def quote_part(part: str) -> str:
    """Return a schema's or table's name as ``table`` columns hold it: bare if a plain lower-case word, else quoted."""
    return part if _PLAIN.match(part) else '"' + part.replace('"', '""') + '"'


def qualified(schema: str, table: str) -> str:
    """Return ``schema.table`` as every ``table`` column, message and option holds it."""
    return f"{quote_part(schema)}.{quote_part(table)}"


def split_qualified(name: str) -> tuple[str, str]:
    """Return schema and table of a qualified name, unquoted. Raises ValueError if it is not ``schema.table``."""
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
    """Return the folder of a schema or table: each unsafe byte becomes ``~`` and two hex digits, one to one.

    A folder longer than 120 characters keeps the first 100, followed by ``~~`` and 16 digits of the name's SHA-256.
    """
    raw = name.encode("utf-8")
    out = "".join(
        chr(byte) if byte in _SAFE_BYTES and not (index == 0 and byte in b"_-") else f"~{byte:02x}"
        for index, byte in enumerate(raw)
    )
    if len(out) > _MAX_FOLDER_CHARACTERS:
        return out[:100] + "~~" + hashlib.sha256(raw).hexdigest()[:16]
    return out


def abbreviated(names: Sequence[str]) -> str:
    """Return the first ten names for a message, and how many more there are."""
    more = len(names) - _MAX_ABBREVIATED_NAMES
    return ", ".join(names[:_MAX_ABBREVIATED_NAMES]) + (f" and {more} more" if more > 0 else "")


def default_server_object(source: str) -> str:
    """Return the default name of a source's slot and publication on its server."""
    return "dblake_" + source.replace("-", "_")


class TableFilter:
    """A predicate for captured tables: case-sensitive globs on ``schema.table``; ``!`` excludes.

    A part in double quotes is literal, so that names with dots, quotes or stars can be given.
    Raises ValueError for a pattern that is not ``schema.table``.
    """

    def __init__(self, patterns: list[str]) -> None:
        self._included = [self._split(p) for p in patterns if not p.startswith("!")]
        self._excluded = [self._split(p[1:]) for p in patterns if p.startswith("!")]

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

    def takes_all_of(self, schema: str) -> bool:
        """Return True if some pattern includes every table of a schema, and none excludes tables of it."""
        includes_all = any(fnmatchcase(schema, s) and set(t) == {"*"} for s, t in self._included)
        return includes_all and not any(fnmatchcase(schema, s) for s, _ in self._excluded)

    def __call__(self, schema: str, table: str) -> bool:
        """Return True if some pattern includes the table and none excludes it."""
        def matches(patterns: list[tuple[str, str]]) -> bool:
            return any(fnmatchcase(schema, s) and fnmatchcase(table, t) for s, t in patterns)

        return matches(self._included) and not matches(self._excluded)
