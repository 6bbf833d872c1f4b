"""Column types between the binlog's type codes and the spellings of ``formats.mysql_types``.

Used by ``relations``. Promises that a column described by TABLE_MAP gets the spelling that the catalog gives it, so
that the schema ids of both are equal; a type that dblake does not decode is rejected by name. The codes are those of
mysql-replication, and live on this side of landing: decoding reads spellings, not codes.

Layout: MySQL documentation of the source, ``Table_map_event``, "type numbers and metadata".
"""

from __future__ import annotations

from collections.abc import Sequence

from pymysqlreplication.constants import FIELD_TYPE

from dblake.base.core.errors import Unsupported
from dblake.payloads.formats.mysql_charsets import CHARSETS
from dblake.payloads.formats.mysql_types import (
    BLOBS,
    FIXED,
    TEXTS,
    MysqlType,
    compressed_column,
    parse,
    set_bytes,
    supported_charset,
    unknown_type,
)

#: mysql-replication 1.0 declares no codes for these: MySQL 9's vectors, and MariaDB's COMPRESSED columns.
VECTOR, COMPRESSED_BLOB, COMPRESSED_VARCHAR = 242, 140, 141

_INTEGERS = {
    "tinyint": FIELD_TYPE.TINY, "smallint": FIELD_TYPE.SHORT, "mediumint": FIELD_TYPE.INT24, "int": FIELD_TYPE.LONG,
    "bigint": FIELD_TYPE.LONGLONG,
}  # fmt: skip
_TEMPORAL = {"timestamp": FIELD_TYPE.TIMESTAMP2, "datetime": FIELD_TYPE.DATETIME2, "time": FIELD_TYPE.TIME2}
_OLD_TEMPORAL = {"timestamp": FIELD_TYPE.TIMESTAMP, "datetime": FIELD_TYPE.DATETIME, "time": FIELD_TYPE.TIME}
_PLAIN = {
    "float": (FIELD_TYPE.FLOAT, 4), "double": (FIELD_TYPE.DOUBLE, 8), "year": (FIELD_TYPE.YEAR, 0),
    "date": (FIELD_TYPE.DATE, 0), "json": (FIELD_TYPE.JSON, 4), "geometry": (FIELD_TYPE.GEOMETRY, 4),
    "vector": (VECTOR, 4),
}  # fmt: skip
"""Type code and metadata of types that are stored in one way."""
_INTEGER_NAMES, _TEMPORAL_NAMES, _OLD_NAMES = (
    {code: name for name, code in codes.items()} for codes in (_INTEGERS, _TEMPORAL, _OLD_TEMPORAL)
)
_PLAIN_NAMES = {code: name for name, (code, _) in _PLAIN.items() if code != VECTOR}


def type_from_log(
    code: int, meta: int, *, unsigned: bool, charset: str | None, labels: Sequence[str] | None,
    dimensions: int | None = None,
) -> str:
    """Return the spelling of a column that TABLE_MAP describes.

    ``meta`` is the little-endian number of the column's metadata bytes, 0 if it has none: ``decimal(10,2)`` has the
    bytes 0a 02, so 0x020a. ``charset`` is the name of the character set (``binary`` for bytes) of character, enum and
    set columns, ``labels`` are those of enum and set columns as text, ``dimensions`` those of a vector. Raises
    Unsupported.
    """
    low, high = meta & 0xFF, meta >> 8
    if code in _INTEGER_NAMES:
        return str(MysqlType(_INTEGER_NAMES[code], unsigned=unsigned))
    if code in (COMPRESSED_BLOB, COMPRESSED_VARCHAR):
        raise compressed_column()
    if code in _TEMPORAL_NAMES:
        return str(MysqlType(_TEMPORAL_NAMES[code], meta))
    if code in _OLD_NAMES:
        return str(MysqlType(_OLD_NAMES[code], old=True))
    if code == FIELD_TYPE.STRING and low in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
        if labels is None:
            raise _metadata_missing()
        name = "enum" if low == FIELD_TYPE.ENUM else "set"
        return str(MysqlType(name, charset=supported_charset(charset or "binary"), labels=tuple(labels)))
    if code == FIELD_TYPE.STRING:
        return _character_type("char", "binary", high | ((low >> 4 & 3) ^ 3) << 8, charset)
    if code == FIELD_TYPE.VARCHAR:
        return _character_type("varchar", "varbinary", meta, charset)
    if code == FIELD_TYPE.BLOB and 1 <= meta <= 4:
        return _character_type(TEXTS[meta - 1], BLOBS[meta - 1], 0, charset)
    if code == FIELD_TYPE.NEWDECIMAL:
        return f"decimal({low},{high})"
    if code == FIELD_TYPE.BIT:
        return f"bit({low + 8 * high})"
    if code == VECTOR:
        if dimensions is None:
            raise _metadata_missing()
        return f"vector({dimensions})"
    if code not in _PLAIN_NAMES:
        raise unknown_type(f"number {code} of the binlog")
    return _PLAIN_NAMES[code]


def log_encoding(spelling: str) -> tuple[int, int]:
    """Return the type code and the metadata number that TABLE_MAP has for a column of this type."""
    column = parse(spelling)
    name = column.name
    if name in _INTEGERS:
        return _INTEGERS[name], 0
    if name in _TEMPORAL:
        return (_OLD_TEMPORAL if column.old else _TEMPORAL)[name], column.size
    if name in ("char", "binary") or name in FIXED:
        return FIELD_TYPE.STRING, _string_meta(FIXED.get(name, column.max_bytes))
    if name in ("varchar", "varbinary"):
        return FIELD_TYPE.VARCHAR, column.max_bytes
    for sizes in (TEXTS, BLOBS):
        if name in sizes:
            return FIELD_TYPE.BLOB, sizes.index(name) + 1
    if name == "enum":
        return FIELD_TYPE.STRING, FIELD_TYPE.ENUM | (1 if len(column.labels) < 256 else 2) << 8
    if name == "set":
        return FIELD_TYPE.STRING, FIELD_TYPE.SET | set_bytes(len(column.labels)) << 8
    if name == "decimal":
        return FIELD_TYPE.NEWDECIMAL, column.size | column.scale << 8
    if name == "bit":
        return FIELD_TYPE.BIT, column.size % 8 | column.size // 8 << 8
    return _PLAIN[name]


def _string_meta(length: int) -> int:
    # Two bits of the length are hidden, inverted, in the type's number.
    code: int = FIELD_TYPE.STRING ^ (length & 0x300) >> 4
    return code | (length & 0xFF) << 8


def _character_type(text: str, binary: str, length: int, charset: str | None) -> str:
    if charset is None:
        raise _metadata_missing()
    if charset == "binary":
        return str(MysqlType(binary, length))
    name = supported_charset(charset)
    return str(MysqlType(text, length // CHARSETS[name].max_bytes, charset=name))


def _metadata_missing() -> Unsupported:
    return Unsupported(
        "the binlog lacks the character set, the labels or the dimensions of a column",
        next_step="SET GLOBAL binlog_row_metadata = 'FULL'",
    )
