"""Reads chunks and writes watermarks, over one autocommit connection that takes no locks.

Each chunk is one short transaction with a consistent snapshot, which also reads back the reader's own watermark row;
rows arrive as the server's packets, undecoded. Keys are ordered and compared by the database alone; the key to resume
from is the one it returned, written as a constant of the column's own type.

A snapshot does not include definitions: these are read before and after it and must be equal. In between the server
lets no definition change from the beginning of the chunk's statement to the end of the transaction, and rejects a read
of a table that was rebuilt after the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pymysql
from pymysql.cursors import Cursor

from dblake.base.core.errors import SourceError, Unsupported
from dblake.base.core.names import split_qualified
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import HEARTBEAT_ROW, ChunkRead, ChunkRequest
from dblake.base.core.source.heartbeats import NAME_CHARS
from dblake.ingest.source.mysql import catalog, keys, sql_literals
from dblake.ingest.source.mysql.driver_errors import table_errors, translate_errors
from dblake.ingest.source.mysql.result_rows import ResultRows, split_values
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.statements import watermark_table
from dblake.landing.columns import MYSQL_ROWS
from dblake.payloads.formats.mysql_types import parse

_UTF8_CHARSETS = ("utf8mb4", "utf8mb3", "ascii")
_NOT_CONVERTIBLE = (1267, 3854)
"""Errors of a comparison with text that the column's character set does not have."""


class MysqlChunkReader:
    """A connection that reads chunks. See ChunkReader for the methods."""

    format = MYSQL_ROWS

    def __init__(self, settings: MysqlSettings, conn: pymysql.Connection) -> None:
        self._settings = settings
        self._connection = conn
        self._rows = ResultRows(conn)
        self._watermark_table = watermark_table(settings)

    def mark(self, reader: int, value: str) -> None:
        self._update_watermark(reader, "%s", value)

    def beat(self, name: str) -> None:
        self._update_watermark(HEARTBEAT_ROW, f"CONCAT(%s, LEFT(COALESCE(value, ''), {NAME_CHARS}))", name)

    def read_mark(self, reader: int) -> str:
        with translate_errors(self._settings), self._connection.cursor() as cur:
            cur.execute(f"SELECT value FROM {self._watermark_table} WHERE id = %s", (reader,))
            if cur.rowcount != 1:
                raise self._missing_row(reader)
            return cur.fetchone()[0] or ""

    def _update_watermark(self, reader: int, value_sql: str, value: str) -> None:
        with translate_errors(self._settings), self._connection.cursor() as cur:
            cur.execute(f"UPDATE {self._watermark_table} SET value = {value_sql} WHERE id = %s", (value, reader))
            if cur.rowcount != 1:
                raise self._missing_row(reader)

    def _missing_row(self, reader: int) -> SourceError:
        return SourceError(
            f"source {self._settings.name}: the watermark table has no row {reader}",
            next_step="run preflight --init, which inserts it",
        )

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        with translate_errors(self._settings), table_errors(table), self._connection.cursor() as cur:
            dumped = self._table(cur, table)
            name, type_ = _key_columns(dumped.schema)[0]
            if parse(type_).name not in sql_literals.INTEGERS or dumped.prefix_key:
                return []
            parts = min(parts, catalog.estimate_rows(cur, dumped.schema_name, dumped.table_name) // rows)
            column = sql_literals.identifier(name)
            cur.execute(f"SELECT MIN({column}), MAX({column}) FROM {_quoted_name(dumped)}")
            # Equal distances between the least and the greatest key; ranges with more rows take longer.
            first, last = (int(value or 0) for value in cur.fetchone())
            keys: dict[tuple[str, ...], None] = {}
            for part in range(1, parts):
                bound = first + (last - first) * part // parts
                self._rows.read(_select(dumped, f"{column} >= {bound}", 1), lambda _: None)
                if key := self._key(cur, dumped.schema):
                    keys[key] = None
            return list(keys)

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        with translate_errors(self._settings), table_errors(request.table), self._connection.cursor() as cur:
            table = self._table(cur, request.table)
            if request.rows is not None:
                return self._supply(cur, table, request, deliver)
            query = _select(table, _condition(table, request), request.limit)
            try:
                cur.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                cur.execute(f"SELECT value FROM {self._watermark_table} WHERE id = %s", (request.reader,))
                low_seen = cur.fetchone()
                self._rows.read(query, lambda rows: deliver(rows, table.schema))
                cur.execute("COMMIT")
                last_key = self._key(cur, table.schema)
                table_after = catalog.table_by_name(cur, table.schema_name, table.table_name)
            except BaseException as error:
                # The rest of a result may still be on the connection, which cannot be used again.
                self._connection.close()
                if isinstance(error, pymysql.Error) and error.args[0] in _NOT_CONVERTIBLE:
                    raise _invalid_key(request.table) from error
                raise
        return ChunkRead(
            rows=self._rows.rows,
            last_key=last_key,
            schema=table.schema,
            low_seen=(low_seen and low_seen[0]) or "",
            schema_changed=table_after is None or table_after.schema != table.schema,
        )

    def _supply(
        self, cur: Cursor, table: catalog.CatalogTable, request: ChunkRequest,
        deliver: Callable[[pa.BinaryArray, TableSchema], None],
    ) -> ChunkRead:
        """Deliver rows from elsewhere, outside any transaction."""
        assert request.rows is not None
        cur.execute(f"SELECT value FROM {self._watermark_table} WHERE id = %s", (request.reader,))
        low_seen = cur.fetchone()
        rows, last = request.rows(table.schema, self.format, deliver)
        table_after = catalog.table_by_name(cur, table.schema_name, table.table_name)
        return ChunkRead(
            rows=rows, last_key=last, schema=table.schema, low_seen=(low_seen and low_seen[0]) or "",
            schema_changed=table_after is None or table_after.schema != table.schema,
        )

    def _table(self, cur: Cursor, name: str) -> catalog.CatalogTable:
        """Return the table. Raises Unsupported if it does not exist or cannot be dumped."""
        table = catalog.table_by_name(cur, *split_qualified(name))
        if table is None:
            raise Unsupported(f"table {name} is not in the database", next_step="correct its name")
        if not table.schema.primary_key:
            raise Unsupported(
                f"table {name} has no primary key, so it cannot be dumped",
                next_step="add a primary key; its changes are followed from the log until then",
            )
        if table.float_keys:
            raise Unsupported(
                f"table {name} has the key column {table.float_keys[0]} of type float, whose values no query can"
                " match, so it cannot be dumped",
                next_step="make the column double; its changes are followed from the log until then",
            )
        return table

    def _key(self, cur: Cursor, schema: TableSchema) -> tuple[str, ...] | None:
        """Return the last row's key in canonical text, None if there were no rows."""
        if not self._rows.last:
            return None
        row = split_values(self._rows.last)
        key = []
        for name, type_ in _key_columns(schema):
            raw = row[schema.names.index(name)] or b""
            charset = parse(type_).charset
            text = self._text(cur, raw, charset) if charset else raw.decode("latin-1")
            key.append(keys.canonical(type_, text))
        return tuple(key)

    @staticmethod
    def _text(cur: Cursor, raw: bytes, charset: str) -> str:
        """Return text of a character set, converted by the server: its mappings may differ from Python's."""
        if charset in _UTF8_CHARSETS:
            return raw.decode()
        cur.execute(f"SELECT CONVERT(_{charset} x'{raw.hex()}' USING utf8mb4)")
        return str(cur.fetchone()[0])

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()


def _key_columns(schema: TableSchema) -> list[tuple[str, str]]:
    types = {c.name: c.type for c in schema.columns}
    return [(name, types[name]) for name in schema.primary_key]


def _condition(table: catalog.CatalogTable, request: ChunkRequest) -> str:
    """Return the condition of the rows to read, empty for all."""
    columns = _key_columns(table.schema)
    try:
        if request.keys is not None:
            return " OR ".join(keys.equal(columns, key) for key in request.keys)
        bounds = []
        if request.after is not None:
            bounds.append(f"({keys.after(columns, request.after)})")
        if request.upto is not None:
            bounds.append(keys.upto(columns, request.upto))
        return " AND ".join(bounds)
    except ValueError as error:
        raise _invalid_key(request.table) from error


def _select(table: catalog.CatalogTable, condition: str, limit: int) -> str:
    # The server prints a FLOAT with six digits; converted to DOUBLE it loses nothing.
    columns = ", ".join(
        f"({sql_literals.identifier(c.name)} + 0e0)" if c.type == "float" else sql_literals.identifier(c.name)
        for c in table.schema.columns
    )
    # Without a hint the optimizer may sort the whole table, once for each chunk.
    index = "" if table.prefix_key else " FORCE INDEX (PRIMARY)"
    order = ", ".join(sql_literals.identifier(name) for name in table.schema.primary_key)
    where = f" WHERE {condition}" if condition else ""
    return f"SELECT {columns} FROM {_quoted_name(table)}{index}{where} ORDER BY {order} LIMIT {limit}"


def _quoted_name(table: catalog.CatalogTable) -> str:
    return sql_literals.identifier(table.schema_name, table.table_name)


def _invalid_key(table: str) -> Unsupported:
    return Unsupported(
        f"table {table}: a requested key is no value of its column's type",
        next_step="correct --keys and start the dump again",
    )
