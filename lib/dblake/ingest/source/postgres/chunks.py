"""Reads chunks and writes watermarks on one autocommit connection, without locks.

Guarantee: each chunk is one short REPEATABLE READ transaction, which also reads the reader's watermark row and records
its snapshot. Only the database orders and compares keys; the next chunk starts after the key that it returned, bound as
a value of the column's own type. Rows arrive by COPY as the lines that PostgreSQL writes; decoding is for Spark.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg2
import pyarrow as pa
from psycopg2 import sql
from psycopg2.extensions import connection, cursor

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import abbreviated, split_qualified
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import ChunkRead, ChunkRequest
from dblake.ingest.source.postgres import catalog
from dblake.ingest.source.postgres.driver_errors import table_errors, translate_errors
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.watermarks import MarkPlace, open_watermarks
from dblake.landing.columns import COPY

_BUFFER_BYTES = 2 << 20
_NEWLINE = ord("\n")
_SAMPLED_PAGES_PER_PART = 25
"""Random pages sampled for each split point: enough for parts of about equal size."""
_PAGES = f"""
SELECT sum(pg_relation_size(oid)) / current_setting('block_size')::int FROM pg_class
WHERE oid IN ({catalog.partition_tree('%(oid)s')})
"""
_SPLIT_POINTS = """
WITH sample AS (
  SELECT {keys}, row_number() OVER (ORDER BY {order}) AS n, count(*) OVER () AS c
  FROM {table} TABLESAMPLE SYSTEM ({share})
), share AS (
  SELECT sample.*, least({parts}, floor(c * 100 / {share} / {rows})::bigint) AS parts FROM sample
)
SELECT {names} FROM share WHERE n < c AND n * parts / c > (n - 1) * parts / c ORDER BY n
"""
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PgChunkReader:
    """See ChunkReader for the methods."""

    format = COPY

    def __init__(self, settings: PostgresSettings, conn: connection, places: dict[int, MarkPlace]) -> None:
        self._settings = settings
        self._connection = conn
        self._watermarks = open_watermarks(settings, places)

    def mark(self, reader: int, value: str) -> None:
        with translate_errors(self._settings), self._connection.cursor() as cur:
            self._watermarks.mark(cur, reader, value)

    def beat(self, name: str) -> None:
        with translate_errors(self._settings), self._connection.cursor() as cur:
            self._watermarks.beat(cur, name)

    def read_mark(self, reader: int) -> str:
        with translate_errors(self._settings), self._connection.cursor() as cur:
            return self._watermarks.read(cur, reader)

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        with translate_errors(self._settings), table_errors(table), self._connection.cursor() as cur:
            cur.execute("SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid", split_qualified(table))
            cataloged = _require_dumpable(table, self._read_catalog(cur, cur.fetchone()[0]))
            cur.execute(_PAGES, {"oid": cataloged.oid})
            pages = cur.fetchone()[0]
            if not pages:
                return []
            keys = [sql.Identifier(name) for name in cataloged.schema.primary_key]
            names = [sql.Identifier(f"key_{number}") for number in range(len(keys))]
            texts = [sql.SQL("{}::text AS {}").format(key, name) for key, name in zip(keys, names, strict=True)]
            cur.execute(sql.SQL(_SPLIT_POINTS).format(
                keys=sql.SQL(", ").join(texts), names=sql.SQL(", ").join(names), order=sql.SQL(", ").join(keys),
                table=_own_rows(cataloged), parts=sql.Literal(parts), rows=sql.Literal(rows),
                share=sql.Literal(min(100.0, 100.0 * parts * _SAMPLED_PAGES_PER_PART / float(pages))),
            ))
            return [tuple(row) for row in cur.fetchall()]

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        with translate_errors(self._settings), table_errors(request.table), self._connection.cursor() as cur:
            try:
                read = self._read if request.rows is None else self._supply
                table, chunk = read(cur, request, deliver)
                # After the transaction, because its snapshot would return the old catalog. A table rewritten between
                # snapshot and read appears empty to the snapshot, without an error.
                current = catalog.table_by_oid(cur, table.oid, first="COMMIT; ")
                return replace(chunk, schema_changed=current != table)
            except BaseException:
                # During a COPY the connection accepts no other statement.
                self._connection.close()
                raise

    def _read(
        self, cur: cursor, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]
    ) -> tuple[catalog.CatalogTable, ChunkRead]:
        table, snapshot, low_seen = self._begin(cur, request)
        with _CopySink(table.schema, deliver) as sink:
            self._copy(cur, self._select(table, request), request, sink)
        return table, ChunkRead(
            rows=sink.rows,
            last_key=_parse_key(sink.last, table.schema) if sink.last else None,
            schema=table.schema,
            low_seen=low_seen,
            snapshot=snapshot,
        )

    def _supply(
        self, cur: cursor, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]
    ) -> tuple[catalog.CatalogTable, ChunkRead]:
        """Deliver rows from elsewhere. The transaction ends first: it must not last as long as landing takes."""
        assert request.rows is not None
        table, _, low_seen = self._begin(cur, request)
        cur.execute("COMMIT")
        rows, last = request.rows(table.schema, self.format, deliver)
        return table, ChunkRead(rows=rows, last_key=last, schema=table.schema, low_seen=low_seen)

    def _begin(self, cur: cursor, request: ChunkRequest) -> tuple[catalog.CatalogTable, str, str]:
        """Begin the chunk's transaction; return the table, its snapshot and the watermark row in it."""
        # One round trip for all three: a dump reads many chunks.
        cur.execute(
            sql.SQL(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
                "SELECT pg_current_snapshot()::text, {}, to_regclass(format('%%I.%%I', %s::text, %s::text))::oid"
            ).format(self._watermarks.low_seen(request.reader)),
            split_qualified(request.table),
        )
        snapshot, low_seen, oid = cur.fetchone()
        return _require_dumpable(request.table, self._read_catalog(cur, oid)), snapshot, low_seen or ""

    @staticmethod
    def _read_catalog(cur: cursor, oid: int | None) -> catalog.CatalogTable | None:
        return catalog.table_by_oid(cur, oid) if oid else None

    @staticmethod
    def _copy(cur: cursor, select: sql.Composable, request: ChunkRequest, sink: _CopySink) -> None:
        # psycopg2 writes row by row; the buffer collects rows without running Python for each.
        buffer = io.BufferedWriter(sink, _BUFFER_BYTES)
        try:
            cur.copy_expert(select.as_string(cur), buffer)
        except psycopg2.DataError as error:
            raise Unsupported(
                f"table {request.table}: a requested key is not a value of its column's type",
                next_step="correct --keys and start the dump again",
            ) from error
        buffer.flush()

    @staticmethod
    def _select(table: catalog.CatalogTable, request: ChunkRequest) -> sql.Composable:
        columns = sql.SQL(", ").join(map(sql.Identifier, table.schema.names))
        keys = sql.SQL(", ").join(map(sql.Identifier, table.schema.primary_key))
        # Type names come from format_type, which quotes what must be quoted.
        types = {c.name: sql.SQL(c.type) for c in table.schema.columns}

        def row(values: Sequence[str]) -> sql.Composable:
            if len(values) != len(table.schema.primary_key):
                raise Unsupported(
                    f"table {request.table}: its key has {len(table.schema.primary_key)} columns, and had"
                    f" {len(values)} when this dump started",
                    next_step="start another dump of the table",
                )
            parts = [
                sql.SQL("CAST({} AS {})").format(sql.Literal(value), types[name])
                for name, value in zip(table.schema.primary_key, values, strict=True)
            ]
            return sql.SQL("({})").format(sql.SQL(", ").join(parts))

        conditions = [sql.SQL("true")]
        if request.keys is not None:
            conditions.append(sql.SQL("({}) IN ({})").format(keys, sql.SQL(", ").join(row(k) for k in request.keys)))
        if request.after is not None:
            conditions.append(sql.SQL("({}) > {}").format(keys, row(request.after)))
        if request.upto is not None:
            conditions.append(sql.SQL("({}) <= {}").format(keys, row(request.upto)))
        return sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {}) TO STDOUT").format(
            columns, _own_rows(table), sql.SQL(" AND ").join(conditions), keys, sql.Literal(request.limit)
        )

    def close(self) -> None:
        self._connection.close()


def _require_dumpable(name: str, table: catalog.CatalogTable | None) -> catalog.CatalogTable:
    if table is None:
        raise Unsupported(f"table {name} does not exist", next_step="correct its name")
    catalog.require_usable_key(table)
    if not table.schema.primary_key:
        raise Unsupported(
            f"table {name} has no primary key, so it cannot be dumped",
            next_step="add a primary key; preflight shows whether its changes are captured until then",
        )
    if table.extension_ordered:
        raise Unsupported(
            f"table {name}: its key column {abbreviated(table.extension_ordered)} has a type from an extension, whose"
            " comparison may differ from its sort order, so the table cannot be dumped",
            next_step="give it a key of a built-in type; until then its changes are captured from the log only",
        )
    return table


def _own_rows(table: catalog.CatalogTable) -> sql.Composable:
    # The log names the rows of tables that inherit from this one by those tables.
    only = sql.SQL("" if table.is_partitioned else "ONLY ")
    return sql.SQL("{}{}").format(only, sql.Identifier(table.schema_name, table.table_name))


class _CopySink(io.RawIOBase):
    """Receives COPY text in pieces that end anywhere, and delivers whole lines.

    A newline always ends a line: COPY writes one inside a value as backslash and n.
    """

    def __init__(self, schema: TableSchema, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> None:
        super().__init__()
        self._schema = schema
        self._deliver = deliver
        self._rest = b""
        self.rows = 0
        self.last = b""

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        text = b"".join((self._rest, piece))
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE).astype(np.int32) + 1
        if len(ends):
            bounds = np.append(np.zeros(1, np.int32), ends)
            self.rows += len(ends)
            self.last = text[bounds[-2] : bounds[-1]]
            lines = pa.BinaryArray.from_buffers(
                pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(text)]
            )
            self._deliver(lines, self._schema)
        self._rest = text[int(ends[-1]) :] if len(ends) else text
        return len(piece)


def _parse_key(line: bytes, schema: TableSchema) -> tuple[str, ...]:
    values = line.decode().removesuffix("\n").split("\t")
    return tuple(_unescape(values[schema.names.index(name)]) for name in schema.primary_key)


def _unescape(text: str) -> str:
    head, *rest = text.split("\\\\")
    return "\\".join(_unescape_plain(part) for part in (head, *rest)) if "\\" in text else text


def _unescape_plain(text: str) -> str:
    first, *rest = text.split("\\")
    return first + "".join(_ESCAPES.get(part[:1], part[:1]) + part[1:] for part in rest)
