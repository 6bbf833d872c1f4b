"""Chunk reads and watermarks: one autocommit connection that takes no locks.

Each chunk is one short transaction with a consistent snapshot, in which the reader's own watermark row is read back and
its rows come as the packets the server writes, undecoded. Keys are ordered and compared by the database alone; the key
to go on from is the one it returned, written as a constant of the column's own type.

A snapshot does not hold definitions: these are read before and after it and have to be equal. In between the server
lets no definition change once the chunk's statement has begun, for as long as the transaction lasts, and refuses to
read a table that was rebuilt after the snapshot was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pymysql
from pymysql.cursors import Cursor

from dblake.core.errors import SourceError, Unsupported
from dblake.core.names import split_qualified
from dblake.core.schema import TableSchema
from dblake.core.source import ChunkRead, ChunkRequest
from dblake.formats.mysql_types import parse
from dblake.landing.columns import MYSQL_ROWS
from dblake.source.mysql import catalog as catalogue
from dblake.source.mysql import sql_literals as spelling
from dblake.source.mysql.connection import explained
from dblake.source.mysql.result_rows import ResultRows, values
from dblake.source.mysql.settings import MysqlSettings

_IN_UTF8 = ("utf8mb4", "utf8mb3", "ascii")
_NOT_CONVERTIBLE = (1267, 3854)


class MysqlChunkReader:
    """See ChunkReader for the methods."""

    format = MYSQL_ROWS

    def __init__(self, settings: MysqlSettings, conn: pymysql.Connection) -> None:
        self._settings = settings
        self._connection = conn
        self._rows = ResultRows(conn)
        self._watermark_table = spelling.identifier(settings.watermark_schema, "watermark")

    def mark(self, reader: int, value: str) -> None:
        with explained(self._settings), self._connection.cursor() as cur:
            cur.execute(f"UPDATE {self._watermark_table} SET value = %s WHERE id = %s", (value, reader))
            if cur.rowcount != 1:
                raise SourceError(
                    f"source {self._settings.name}: the watermark table has no row {reader}",
                    next_step="run preflight --init, which puts it there",
                )

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        with explained(self._settings), self._connection.cursor() as cur:
            known = self._table(cur, table)
            name, type_ = _key_columns(known.schema)[0]
            if parse(type_).name not in spelling.INTEGERS or known.prefix_key:
                return []
            parts = min(parts, catalogue.rows_about(cur, known.schema_name, known.table_name) // rows)
            column, of = spelling.identifier(name), spelling.identifier(known.schema_name, known.table_name)
            cur.execute(f"SELECT MIN({column}), MAX({column}) FROM {of}")
            least, most = cur.fetchone()
            # Dumps read key by key, so where the values crowd matters little: the fuller stretches take longer.
            first, last = (int(value or 0) for value in (least, most))
            keys: dict[tuple[str, ...], None] = {}
            for part in range(1, parts):
                mark = first + (last - first) * part // parts
                self._rows.read(_select(known, f"{column} >= {mark}", 1), lambda _: None)
                if key := self._key(cur, known.schema):
                    keys[key] = None
            return list(keys)

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        with explained(self._settings), self._connection.cursor() as cur:
            table = self._table(cur, request.table)
            query = _select(table, _wanted(table, request), request.limit)
            try:
                cur.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                cur.execute(f"SELECT value FROM {self._watermark_table} WHERE id = %s", (request.reader,))
                low_seen = cur.fetchone()
                self._rows.read(query, lambda rows: deliver(rows, table.schema))
                cur.execute("COMMIT")
                last_key = self._key(cur, table.schema)
                again = catalogue.table_by_name(cur, table.schema_name, table.table_name)
            except BaseException as error:
                # In the middle of a result nothing else can be said on this connection.
                self._connection.close()
                if isinstance(error, pymysql.Error) and error.args[0] in _NOT_CONVERTIBLE:
                    raise _no_value(request.table) from error
                raise
        return ChunkRead(
            rows=self._rows.rows,
            last_key=last_key,
            schema=table.schema,
            low_seen=(low_seen and low_seen[0]) or "",
            schema_changed=again is None or again.schema != table.schema,
        )

    def _table(self, cur: Cursor, name: str) -> catalogue.CatalogueTable:
        table = catalogue.table_by_name(cur, *split_qualified(name))
        if table is None:
            raise Unsupported(f"table {name} is not in the database", next_step="correct its name")
        if not table.schema.primary_key:
            raise Unsupported(
                f"table {name} has no primary key, so it cannot be dumped",
                next_step="add a primary key; its changes are followed from the log meanwhile",
            )
        if table.float_keys:
            raise Unsupported(
                f"table {name} has the key column {table.float_keys[0]} of type float, whose values cannot be asked"
                " for, so it cannot be dumped",
                next_step="make the column double; its changes are followed from the log meanwhile",
            )
        return table

    def _key(self, cur: Cursor, schema: TableSchema) -> tuple[str, ...] | None:
        """The last row's key in canonical text. Only the server knows what its characters are in UTF-8."""
        if not self._rows.last:
            return None
        row = values(self._rows.last)
        key = []
        for name, type_ in _key_columns(schema):
            raw = row[schema.names.index(name)] or b""
            charset = parse(type_).charset
            key.append(spelling.canonical(type_, self._text(cur, raw, charset) if charset else raw.decode("latin-1")))
        return tuple(key)

    @staticmethod
    def _text(cur: Cursor, raw: bytes, charset: str) -> str:
        if charset in _IN_UTF8:
            return raw.decode()
        cur.execute(f"SELECT CONVERT(_{charset} x'{raw.hex()}' USING utf8mb4)")
        return str(cur.fetchone()[0])

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def _key_columns(schema: TableSchema) -> list[tuple[str, str]]:
    types = {c.name: c.type for c in schema.columns}
    return [(name, types[name]) for name in schema.primary_key]


def _wanted(table: catalogue.CatalogueTable, request: ChunkRequest) -> str:
    """What is true of the rows to be read."""
    keys = _key_columns(table.schema)
    try:
        if request.keys is not None:
            return " OR ".join(spelling.equal(keys, key) for key in request.keys)
        bounds = []
        if request.after is not None:
            bounds.append(f"({spelling.after(keys, request.after)})")
        if request.upto is not None:
            bounds.append(spelling.upto(keys, request.upto))
        return " AND ".join(bounds)
    except ValueError as error:
        raise _no_value(request.table) from error


def _select(table: catalogue.CatalogueTable, wanted: str, limit: int) -> str:
    # A float is written with six digits unless it is made a double, which loses nothing.
    columns = ", ".join(
        f"({spelling.identifier(c.name)} + 0e0)" if c.type == "float" else spelling.identifier(c.name)
        for c in table.schema.columns
    )
    # Left to itself the server may prefer to sort the table, once for each chunk.
    index = "" if table.prefix_key else " FORCE INDEX (PRIMARY)"
    order = ", ".join(spelling.identifier(name) for name in table.schema.primary_key)
    name = spelling.identifier(table.schema_name, table.table_name)
    where = f" WHERE {wanted}" if wanted else ""
    return f"SELECT {columns} FROM {name}{index}{where} ORDER BY {order} LIMIT {limit}"


def _no_value(table: str) -> Unsupported:
    return Unsupported(
        f"table {table}: a key asked for is no value of its column's type",
        next_step="correct --keys and start the dump again",
    )
