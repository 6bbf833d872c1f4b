"""The spelling of MySQL's and MariaDB's column types, which source and decoding share.

The source spells types when it makes schemas; decoding derives the layout of values from the spelling, and neither
queries the database again. Guarantees: a type from ``information_schema`` (here) has the same spelling as one from a
TABLE_MAP event (``source.mysql.column_types``), so that the schema ids of both are equal. A type that dblake does not
decode is rejected by name. Character sets are left to ``mysql_charsets``, reading values to decoding.

========================================================================= =========================================
spelling                                                                  notes
========================================================================= =========================================
``tinyint`` ``smallint`` ``mediumint`` ``int`` ``bigint``, `` unsigned``  without display width and zerofill
``decimal(p,s)`` ``float`` ``double`` ``bit(n)`` ``year``                 sign and width dropped
``char(n)`` ``varchar(n)`` ``tinytext`` ``text`` ``mediumtext``           always with `` character set X``
``longtext``
``binary(n)`` ``varbinary(n)`` ``tinyblob`` ``blob`` ``mediumblob``       the same, of character set binary
``longblob``
``enum('a','b')`` ``set('a','b')``                                        labels as text, quotes doubled; always with
                                                                          `` character set X``
``date``, ``time`` ``datetime`` ``timestamp`` and ``(f)`` if f > 0        stored as before MySQL 5.6:
                                                                          `` /* mariadb-5.3 */`` behind it, no f
``json`` ``geometry`` ``vector(n)``                                       as MySQL stores them
``uuid`` ``inet4`` ``inet6``                                              MariaDB's, in the catalog only
========================================================================= =========================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from dblake.base.core.errors import Unsupported
from dblake.payloads.formats.mysql_charsets import CHARSETS, charset_named

_OLD = " /* mariadb-5.3 */"
"""Marks MariaDB's temporal types that are stored as before MySQL 5.6; the catalog has the same comment."""

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEMPORAL = ("timestamp", "datetime", "time")
TEXTS = ("tinytext", "text", "mediumtext", "longtext")
BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
"""Types by the size of their length, from 1 byte to 4."""
FIXED = {"uuid": 16, "inet4": 4, "inet6": 16}
"""Bytes of the types that MariaDB stores as ``binary(n)``; only its catalog distinguishes them."""
_GEOMETRIES = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
               "geometrycollection", "geomcollection"}
_SIZED = {"bit", "char", "varchar", "binary", "varbinary", "vector"}
_PLAIN = {"float", "double", "year", "date", "json", *FIXED, *BLOBS}

_WORD = re.compile(r"([a-z0-9]+)(?:\((\d+)(?:,(\d+))?\))?")
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_SPELLED_LABEL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_CHARACTER_SET = " character set "
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "\\": "\\"}
"""Escapes of information_schema in labels, apart from the quote."""


@dataclass(frozen=True, slots=True)
class MysqlType:
    """The parts of a spelling. ``size`` is its n, p of decimals, f of temporal types, else 0."""

    name: str
    size: int = 0
    scale: int = 0
    unsigned: bool = False
    charset: str = ""
    labels: tuple[str, ...] = ()
    old: bool = False

    def __str__(self) -> str:
        out = self.name
        if self.name == "decimal":
            out += f"({self.size},{self.scale})"
        elif self.name in ("enum", "set"):
            out += "(" + ",".join("'" + label.replace("'", "''") + "'" for label in self.labels) + ")"
        elif self.name in _SIZED or (self.name in _TEMPORAL and self.size):
            out += f"({self.size})"
        out += " unsigned" * self.unsigned + _OLD * self.old
        return out + _CHARACTER_SET + self.charset if self.charset else out

    @property
    def max_bytes(self) -> int:
        """The size of the longest ``char``, ``varchar``, ``binary`` or ``varbinary`` value, in bytes."""
        return self.size * (CHARSETS[self.charset].max_bytes if self.charset else 1)


@lru_cache(maxsize=4096)
def parse(spelling: str) -> MysqlType:
    """Return the parts of a spelling. Raises Unsupported for any text that this module does not produce."""
    head, _, charset = spelling.rpartition(_CHARACTER_SET) if _CHARACTER_SET in spelling else (spelling, "", "")
    if charset:
        charset_named(charset)
    name = re.match(r"[a-z0-9]*", head)[0]  # type: ignore[index]
    if name in ("enum", "set"):
        labels = tuple(label.replace("''", "'") for label in _SPELLED_LABEL.findall(head[len(name) :]))
        return _checked(MysqlType(name, charset=charset, labels=labels), spelling)
    old = head.endswith(_OLD)
    head = head.removesuffix(_OLD)
    unsigned = head.endswith(" unsigned")
    match = _WORD.fullmatch(head.removesuffix(" unsigned"))
    if not match:
        raise unknown_type(spelling)
    return _checked(
        MysqlType(match[1], int(match[2] or 0), int(match[3] or 0), unsigned, charset, old=old), spelling
    )


def type_from_catalog(column_type: str, charset: str | None, *, mariadb: bool = False) -> str:
    """Return the spelling of a column, given its COLUMN_TYPE and CHARACTER_SET_NAME of information_schema.

    ``mariadb`` matters for ``vector(n)`` alone, which MariaDB stores as ``varbinary``. Raises Unsupported.
    """
    if "COMPRESSED" in column_type and not column_type.startswith(("enum", "set")):
        raise compressed_column()
    name = re.match(r"[a-z0-9]*", column_type)[0]  # type: ignore[index]
    if name in ("enum", "set"):
        labels = tuple(_unescaped(label) for label in _LABEL.findall(column_type[len(name) :]))
        return str(MysqlType(name, charset=supported_charset(charset or "binary"), labels=labels))
    match = _WORD.match(column_type)
    if not match:
        raise unknown_type(column_type)
    size, scale = int(match[2] or 0), int(match[3] or 0)
    rest = column_type[match.end() :].split()
    if name in _INTEGERS:
        return str(MysqlType(name, unsigned="unsigned" in rest))
    if name in _GEOMETRIES:
        return "geometry"
    if name == "vector" and mariadb:
        return f"varbinary({4 * size})"
    if name in _TEMPORAL:
        if size and column_type.endswith(_OLD):
            raise _old_fractions()
        return str(MysqlType(name, size, old=column_type.endswith(_OLD)))
    if name in ("char", "varchar") or name in TEXTS:
        return str(MysqlType(name, size, charset=supported_charset(charset or "")))
    if name == "decimal":
        return str(MysqlType(name, size, scale))
    if name in _SIZED:
        return str(MysqlType(name, size))
    if name in _PLAIN:
        return name
    raise unknown_type(name)


def set_bytes(labels: int) -> int:
    """Return the bytes of a value of a set with this number of labels."""
    needed = (labels + 7) // 8
    return needed if needed <= 4 else 8


def supported_charset(name: str) -> str:
    """Return the name that spellings use for a server's character set. Raises Unsupported if it is not decoded."""
    # The older name in MySQL up to 8.0 and MariaDB up to 10.5.
    name = "utf8mb3" if name == "utf8" else name
    charset_named(name)
    return name


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)|''", lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else "'", label, flags=re.DOTALL)


def _checked(column: MysqlType, spelling: str) -> MysqlType:
    """Return the type. Raises Unsupported if its spelling lacks a part or has one too many."""
    name = column.name
    is_known = name in (*_INTEGERS, *_TEMPORAL, *_SIZED, *_PLAIN, *TEXTS, "geometry", "decimal", "enum", "set")
    misplaced = (column.unsigned and name not in _INTEGERS) or (column.old and (name not in _TEMPORAL or column.size))
    has_charset = name in ("char", "varchar", "enum", "set", *TEXTS)
    if not is_known or misplaced or str(column) != spelling or bool(column.charset) != has_charset:
        raise unknown_type(spelling)
    return column


def unknown_type(name: str) -> Unsupported:
    """Return the error for a column type that dblake does not decode."""
    return Unsupported(
        f"the column type {name} is not one dblake decodes",
        next_step="take the table out of source.tables, or change the column's type",
    )


def compressed_column() -> Unsupported:
    """Return the error for MariaDB's COMPRESSED columns."""
    return Unsupported(
        "the column is COMPRESSED, which dblake does not decode",
        next_step="take the table out of source.tables, or ALTER TABLE … MODIFY the column without COMPRESSED",
    )


def _old_fractions() -> Unsupported:
    # Its TABLE_MAP has no size of the fraction.
    return Unsupported(
        "the column has fractions of seconds in MariaDB's format from before 10.1, which the binlog does not describe",
        next_step="SET GLOBAL mysql56_temporal_format = ON, then ALTER TABLE … FORCE",
    )
