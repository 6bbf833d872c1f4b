"""How a MySQL or MariaDB column's type is spelled, and what the binlog says of a column spelled so.

Beside ``columns`` at the seam: the source spells types when it makes schemas, decoding reads the layout of values out
of the spelling, and neither asks the database again. Promise: one type has one spelling, whether it comes from
``information_schema`` or from a TABLE_MAP event, so that the schema ids of both are equal; what dblake does not
decode is refused by name. Character sets are left to ``mysql_charsets``, reading values to decoding.

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
``uuid`` ``inet4`` ``inet6``                                              MariaDB's, known to the catalogue only
========================================================================= =========================================

Layout: MySQL documentation of the source, ``Table_map_event``, "type numbers and metadata".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dblake.core.errors import Unsupported
from dblake.formats.mysql_charsets import CHARSETS, charset_named

__all__ = ["CHARSETS", "FIXED", "MysqlType", "from_catalogue", "from_log", "parse", "set_bytes", "wire"]

_OLD = " /* mariadb-5.3 */"

# The type codes of TABLE_MAP.
_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 9, "int": 3, "bigint": 8}
_FLOAT, _DOUBLE, _DATE, _YEAR, _VARCHAR, _BIT = 4, 5, 10, 13, 15, 16
_TEMPORAL = {"timestamp": 17, "datetime": 18, "time": 19}
_OLD_TEMPORAL = {"timestamp": 7, "datetime": 12, "time": 11}
_VECTOR, _JSON, _DECIMAL, _ENUM, _SET, _BLOB, _STRING, _GEOMETRY = 242, 245, 246, 247, 248, 252, 254, 255
_INTEGER_NAMES = {code: name for name, code in _INTEGERS.items()}
_TEMPORAL_NAMES = {code: name for name, code in _TEMPORAL.items()}
_OLD_NAMES = {code: name for name, code in _OLD_TEMPORAL.items()}
_COMPRESSED = (140, 141)

_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
#: Bytes of the types that MariaDB stores as ``binary(n)`` and that only its catalogue tells apart.
FIXED = {"uuid": 16, "inet4": 4, "inet6": 16}
_GEOMETRIES = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
               "geometrycollection", "geomcollection"}
_SIZED = {"bit", "char", "varchar", "binary", "varbinary", "vector"}
_PLAIN = {"float", "double", "year", "date", "json", *FIXED, *_BLOBS}

_WORD = re.compile(r"([a-z0-9]+)(?:\((\d+)(?:,(\d+))?\))?")
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_SPELT_LABEL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_CHARACTER_SET = " character set "
# What information_schema escapes in labels, apart from the quote.
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class MysqlType:
    """A spelling taken apart. ``size`` is n of the spelling, p of decimals, f of temporal types, else 0."""

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
    def most_bytes(self) -> int:
        """The bytes the longest ``char``, ``varchar``, ``binary`` or ``varbinary`` value takes."""
        return self.size * (CHARSETS[self.charset].most if self.charset else 1)


@lru_cache(maxsize=4096)
def parse(spelling: str) -> MysqlType:
    """A spelling taken apart. Raises Unsupported for what no column of ours is spelled like."""
    head, _, charset = spelling.rpartition(_CHARACTER_SET) if _CHARACTER_SET in spelling else (spelling, "", "")
    if charset:
        charset_named(charset)
    name = re.match(r"[a-z0-9]*", head)[0]  # type: ignore[index]
    if name in ("enum", "set"):
        labels = tuple(label.replace("''", "'") for label in _SPELT_LABEL.findall(head[len(name) :]))
        return _checked(MysqlType(name, charset=charset, labels=labels), spelling)
    old = head.endswith(_OLD)
    head = head.removesuffix(_OLD)
    unsigned = head.endswith(" unsigned")
    match = _WORD.fullmatch(head.removesuffix(" unsigned"))
    if not match:
        raise _unknown(spelling)
    return _checked(
        MysqlType(match[1], int(match[2] or 0), int(match[3] or 0), unsigned, charset, old=old), spelling
    )


def from_catalogue(column_type: str, charset: str | None, *, mariadb: bool = False) -> str:
    """The spelling of a column whose COLUMN_TYPE and CHARACTER_SET_NAME information_schema gives.

    ``mariadb`` matters for ``vector(n)`` alone, which MariaDB stores as ``varbinary``. Raises Unsupported.
    """
    if "COMPRESSED" in column_type and not column_type.startswith(("enum", "set")):
        raise _compressed()
    name = re.match(r"[a-z0-9]*", column_type)[0]  # type: ignore[index]
    if name in ("enum", "set"):
        labels = tuple(_unescaped(label) for label in _LABEL.findall(column_type[len(name) :]))
        return str(MysqlType(name, charset=_charset(charset or "binary"), labels=labels))
    match = _WORD.match(column_type)
    if not match:
        raise _unknown(column_type)
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
    if name in ("char", "varchar") or name in _TEXTS:
        return str(MysqlType(name, size, charset=_charset(charset or "")))
    if name == "decimal":
        return str(MysqlType(name, size, scale))
    if name in _SIZED:
        return str(MysqlType(name, size))
    if name in _PLAIN:
        return name
    raise _unknown(name)


def from_log(
    code: int, meta: int, *, unsigned: bool, charset: str | None, labels: Sequence[str] | None,
    dimensions: int | None = None,
) -> str:
    """The spelling of a column that TABLE_MAP describes.

    ``meta`` is the little-endian number of the column's metadata bytes, 0 if it has none: ``decimal(10,2)`` has the
    bytes 0a 02, so 0x020a. ``charset`` is the name of the character set (``binary`` for bytes) of character, enum and
    set columns, ``labels`` those of enum and set columns as text, ``dimensions`` of a vector. Raises
    Unsupported.
    """
    low, high = meta & 0xFF, meta >> 8
    if code in _INTEGER_NAMES:
        return str(MysqlType(_INTEGER_NAMES[code], unsigned=unsigned))
    if code in _COMPRESSED:
        raise _compressed()
    if code in _TEMPORAL_NAMES:
        return str(MysqlType(_TEMPORAL_NAMES[code], meta))
    if code in _OLD_NAMES:
        return str(MysqlType(_OLD_NAMES[code], old=True))
    if code == _STRING and low in (_ENUM, _SET):
        if labels is None:
            raise _metadata_missing()
        name = "enum" if low == _ENUM else "set"
        return str(MysqlType(name, charset=_charset(charset or "binary"), labels=tuple(labels)))
    if code == _STRING:
        return _characters("char", "binary", high | ((low >> 4 & 3) ^ 3) << 8, charset)
    if code == _VARCHAR:
        return _characters("varchar", "varbinary", meta, charset)
    if code == _BLOB and 1 <= meta <= 4:
        return _characters(_TEXTS[meta - 1], _BLOBS[meta - 1], 0, charset)
    if code == _DECIMAL:
        return f"decimal({low},{high})"
    if code == _BIT:
        return f"bit({low + 8 * high})"
    if code == _VECTOR:
        if dimensions is None:
            raise _metadata_missing()
        return f"vector({dimensions})"
    names = {_FLOAT: "float", _DOUBLE: "double", _DATE: "date", _YEAR: "year", _JSON: "json", _GEOMETRY: "geometry"}
    if code not in names:
        raise _unknown(f"number {code} of the binlog")
    return names[code]


def wire(spelling: str) -> tuple[int, int]:
    """What TABLE_MAP says of a column spelled so: its type code and its metadata as ``from_log`` takes it."""
    column = parse(spelling)
    name = column.name
    if name in _INTEGERS:
        return _INTEGERS[name], 0
    if name in _TEMPORAL:
        return (_OLD_TEMPORAL if column.old else _TEMPORAL)[name], column.size
    if name in ("char", "binary") or name in FIXED:
        return _STRING, _string_meta(FIXED.get(name, column.most_bytes))
    if name in ("varchar", "varbinary"):
        return _VARCHAR, column.most_bytes
    for sizes in (_TEXTS, _BLOBS):
        if name in sizes:
            return _BLOB, sizes.index(name) + 1
    if name == "enum":
        return _STRING, _ENUM | (1 if len(column.labels) < 256 else 2) << 8
    if name == "set":
        return _STRING, _SET | set_bytes(len(column.labels)) << 8
    if name == "decimal":
        return _DECIMAL, column.size | column.scale << 8
    if name == "bit":
        return _BIT, column.size % 8 | column.size // 8 << 8
    return {"float": (_FLOAT, 4), "double": (_DOUBLE, 8), "year": (_YEAR, 0), "date": (_DATE, 0), "json": (_JSON, 4),
            "geometry": (_GEOMETRY, 4), "vector": (_VECTOR, 4)}[name]


def set_bytes(labels: int) -> int:
    """How many bytes a value of a set with so many labels takes."""
    needed = (labels + 7) // 8
    return needed if needed <= 4 else 8


def _string_meta(length: int) -> int:
    # Two bits of the length are hidden, inverted, in the type's number.
    return _STRING ^ (length & 0x300) >> 4 | (length & 0xFF) << 8


def _characters(text: str, binary: str, length: int, charset: str | None) -> str:
    if charset is None:
        raise _metadata_missing()
    if charset == "binary":
        return str(MysqlType(binary, length))
    name = _charset(charset)
    return str(MysqlType(text, length // CHARSETS[name].most, charset=name))


def _charset(name: str) -> str:
    # MySQL up to 8.0 and MariaDB up to 10.5 call it by its older name.
    name = "utf8mb3" if name == "utf8" else name
    charset_named(name)
    return name


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)|''", lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else "'", label, flags=re.DOTALL)


def _checked(column: MysqlType, spelling: str) -> MysqlType:
    """A spelling that says more or less than its type has is none of ours."""
    name = column.name
    known = name in (*_INTEGERS, *_TEMPORAL, *_SIZED, *_PLAIN, *_TEXTS, "geometry", "decimal", "enum", "set")
    misplaced = (column.unsigned and name not in _INTEGERS) or (column.old and (name not in _TEMPORAL or column.size))
    characters = name in ("char", "varchar", "enum", "set", *_TEXTS)
    if not known or misplaced or str(column) != spelling or bool(column.charset) != characters:
        raise _unknown(spelling)
    return column


def _unknown(what: str) -> Unsupported:
    return Unsupported(
        f"the column type {what} is not one dblake decodes",
        next_step="take the table out of source.tables, or change the column's type",
    )


def _compressed() -> Unsupported:
    return Unsupported(
        "the column is COMPRESSED, which dblake does not decode",
        next_step="take the table out of source.tables, or ALTER TABLE … MODIFY the column without COMPRESSED",
    )


def _old_fractions() -> Unsupported:
    # Its TABLE_MAP does not say how long such a value is.
    return Unsupported(
        "the column has fractions of seconds in MariaDB's format from before 10.1, which the binlog does not describe",
        next_step="SET GLOBAL mysql56_temporal_format = ON, then ALTER TABLE … FORCE",
    )


def _metadata_missing() -> Unsupported:
    return Unsupported(
        "the binlog does not say the character set, the labels or the dimensions of a column",
        next_step="SET GLOBAL binlog_row_metadata = 'FULL'",
    )


