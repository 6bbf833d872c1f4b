"""mysql-replication's row decoder, set up without a server: the reference for dblake's own decoder."""

from __future__ import annotations

from typing import Any

from pymysql.protocol import MysqlPacket
from pymysqlreplication.column import Column as TheirColumn
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
from pymysqlreplication.table import Table

from dblake.base.core.schema import TableSchema
from dblake.ingest.source.mysql.column_types import log_encoding
from dblake.payloads.formats.mysql_types import parse
from tests.support.binlog_encode import TABLE_ID

_EVENTS = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent)


class _Control:
    """The control connection, as far as the library uses it."""

    charset = "utf8mb4"

    def _get_dbms(self) -> str:
        return "mysql"


class _Meta:
    """The metadata bytes of one column, in the interface that the library reads them through."""

    def __init__(self, number: int) -> None:
        self._rest = number.to_bytes(4, "little")

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        head, self._rest = self._rest[:size], self._rest[size:]
        return head

    def read_uint8(self) -> int:
        """Return the next byte as a number."""
        return self.read(1)[0]


def their_table(schema: TableSchema) -> dict[int, Any]:
    """Return the library's description of a table, by table id, as its TABLE_MAP reader builds it."""
    columns = []
    for column in schema.columns:
        kind, (code, meta) = parse(column.type), log_encoding(column.type)
        theirs = TheirColumn(code, _Meta(meta))
        theirs.name, theirs.unsigned, theirs.is_primary = column.name, kind.unsigned, bool(column.key)
        theirs.character_set_name = kind.charset or "binary"
        theirs.enum_values, theirs.set_values = ["", *kind.labels], list(kind.labels)
        columns.append(theirs)
    return {TABLE_ID: Table(TABLE_ID, "shop", "orders", columns, column_name_flag=True)}


def their_rows(event: bytes, tables: dict[int, Any]) -> list[dict[str, Any]]:
    """Return the rows of one event as the library decodes them."""
    wrapper = BinLogPacketWrapper(
        MysqlPacket(b"\0" + event, "utf8mb4"), tables, _Control(), (8, 4, 0), True, _EVENTS, None, None, None, None,
        False, False, False, True, False, False, dict.fromkeys(range(256), 10),
    )
    return wrapper.event.rows  # type: ignore[no-any-return]
