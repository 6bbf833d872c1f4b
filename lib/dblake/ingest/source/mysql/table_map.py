"""TABLE_MAP events: the table that the rows events behind them refer to, and its columns as the log describes them.

Guarantee: columns are in the event's order; a fact that the event leaves out is None. With
``binlog_row_metadata=FULL`` the event has names, signs, character sets, labels and the primary key. ``relations``
decides whether the table is captured, and which schema it has. mysql-replication's ``TableMapEvent`` is not used: it
lacks vectors, decodes labels as UTF-8 and rejects unknown types (decision 8).

Layout: ``Table_map_event`` in MySQL's documentation of the source.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymysqlreplication.constants import FIELD_TYPE

from dblake.ingest.source.mysql.column_types import COMPRESSED_BLOB, COMPRESSED_VARCHAR, VECTOR
from dblake.ingest.source.mysql.length_encoded import read_packed
from dblake.ingest.source.mysql.table_metadata import BLOBS, read_metadata
from dblake.payloads.formats.binlog import ROWS_HEADER_BYTES

_META_BYTES = {
    **dict.fromkeys((
        FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, *BLOBS, FIELD_TYPE.GEOMETRY, FIELD_TYPE.JSON, VECTOR,
        FIELD_TYPE.TIMESTAMP2, FIELD_TYPE.DATETIME2, FIELD_TYPE.TIME2, COMPRESSED_BLOB,
    ), 1),
    **dict.fromkeys((
        FIELD_TYPE.BIT, FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.NEWDECIMAL,
        FIELD_TYPE.ENUM, FIELD_TYPE.SET, COMPRESSED_VARCHAR,
    ), 2),
}  # fmt: skip
"""Bytes of metadata by type; 0 for all others."""


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column as the log describes it. ``meta`` is the little-endian number of its metadata bytes."""

    name: str | None
    code: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] | None = None
    dimensions: int | None = None
    key: int | None = None
    """The column's number in the primary key, from 1."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the log describes it before each statement's rows."""

    schema_name: str
    table_name: str
    columns: tuple[MappedColumn, ...]


def read_names(body: bytes) -> tuple[str, str]:
    """Return the schema's and the table's name of a TABLE_MAP event's body."""
    schema, table, _ = _read_names(body)
    return schema, table


def read_table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """Return the table that a TABLE_MAP event's body describes."""
    schema, table, offset = _read_names(body)
    count, offset = read_packed(body, offset)
    codes = body[offset : offset + count]
    size, offset = read_packed(body, offset + count)
    metas, meta_at = [], offset
    for code in codes:
        width = _META_BYTES.get(code, 0)
        metas.append(int.from_bytes(body[meta_at : meta_at + width], "little"))
        meta_at += width
    offset += size
    behind = offset + (count + 7) // 8
    nullable = _low_bits(body[offset:behind], count)
    labeled = (FIELD_TYPE.ENUM, FIELD_TYPE.SET)
    real = [meta & 0xFF if code == FIELD_TYPE.STRING and meta & 0xFF in labeled else code
            for code, meta in zip(codes, metas, strict=True)]
    more = read_metadata(body[behind:], real, mariadb=mariadb)
    return TableMap(schema, table, tuple(
        MappedColumn(
            more.names.get(n), code, metas[n], nullable[n], more.signs.get(n, False), more.collations.get(n),
            more.labels.get(n), more.dimensions.get(n), more.keys.get(n),
        )
        for n, code in enumerate(codes)
    ))


def _read_names(body: bytes) -> tuple[str, str, int]:
    offset = ROWS_HEADER_BYTES
    names = []
    for _ in range(2):
        size, offset = read_packed(body, offset)
        names.append(body[offset : offset + size].decode())
        offset += size + 1
    return names[0], names[1], offset


def _low_bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[n >> 3] >> (n & 7) & 1) for n in range(count)]
