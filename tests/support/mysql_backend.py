"""MariaDB and MySQL as backends of the conformance suite.

Neither server retains its log for a named reader or receives confirmed positions: it removes log files on its own. So
``drop_slot`` purges the log, ``advance_slot`` resets it, and a source opened without a resume point starts where
``source`` initialized it, as it would with a slot.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType

from dblake.base.core.names import split_qualified
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.source.mysql.init import run_init
from dblake.ingest.source.mysql.log import MysqlLogStream
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from dblake.ingest.source.mysql.sql_literals import identifier, string
from tests.support.backends import Row, Transaction
from tests.support.mysql import MysqlServer

#: Collations that compare text byte by byte, including trailing blanks.
_BY_BYTES = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin"}


class MysqlBackend:
    """A server's test databases, accessed as administrator; only the source itself uses the capture role."""

    keeps_log_for_reader = False
    has_txids = False
    has_watermark_rows = True
    truncates_together = False

    def __init__(self, server: MysqlServer) -> None:
        self.server = server
        self.settings: MysqlSettings | None = None
        self.admin = (server.user, server.password)
        """Who runs ``--init``."""
        self._begin = ""
        self._partial = False

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        """Create a table. ``toasted`` columns are blobs; from then on updates that do not set them do not log them."""
        self._partial |= bool(toasted)
        database, _ = split_qualified(schema.table)
        columns = [
            f"{identifier(c.name)} {'longtext' if c.name in toasted else self._type(c)}"
            + ("" if c.nullable else " NOT NULL")
            for c in schema.columns
        ]
        if schema.primary_key:
            columns.append(f"PRIMARY KEY ({', '.join(map(identifier, schema.primary_key))})")
        self.server.run(
            f"CREATE DATABASE IF NOT EXISTS {identifier(database)}",
            f"CREATE TABLE {_name(schema.table)} ({', '.join(columns)})",
        )

    def _type(self, column: Column) -> str:
        if column.type == "text":
            length = 150 if column.key else 1000
            return f"varchar({length}) CHARACTER SET utf8mb4 COLLATE {_BY_BYTES[self.server.flavour]}"
        return column.type

    def add_column(self, table: str, column: Column, default: str) -> None:
        self.server.run(
            f"ALTER TABLE {_name(table)} ADD COLUMN {identifier(column.name)} {self._type(column)}"
            f" DEFAULT {string(default)}"
        )

    def begin(self) -> Transaction:
        return MysqlTransaction(self.server, partial=self._partial)

    def delete_unlogged(self, table: str, where: Row) -> None:
        with MysqlTransaction(self.server, partial=False, logged=False) as transaction:
            transaction.delete(table, where)

    def rows(self, table: str) -> list[Row]:
        connection = self.server.connect(conv={})
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {_name(table)}")
                names = [column[0] for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()

    def source(self, *patterns: str) -> Source:
        if self.settings is None:
            server = self.server
            self.settings = MysqlSettings(
                name="shop", flavour=server.flavour, host="127.0.0.1", port=server.port, user="cap",
                password="it's a secret", patterns=patterns, tls="disable",
            )
            run_init(self.settings, *self.admin)
            stream = MysqlSource(self.settings).open_log(None, 1)
            self._begin = stream.start.token
            stream.close()
        else:
            self.settings = replace(self.settings, patterns=patterns)
            run_init(self.settings, *self.admin)
        return _StartedSource(self.settings, self._begin)

    def other_slot(self) -> Source:
        assert self.settings is not None
        return _StartedSource(replace(self.settings, server_id=77), self._begin)

    def log_end(self) -> int:
        raise NotImplementedError("the server does not receive a confirmed position to compare with")

    def confirmed(self) -> int:
        raise NotImplementedError("the server does not receive a confirmed position")

    def drop_slot(self) -> None:
        self.cut_connections()
        self.server.run("FLUSH BINARY LOGS")
        deadline = time.monotonic() + 20
        # A log file stays while a closing reader has it open, or while a checkpoint may still need it.
        while len(files := self.server.rows("SHOW BINARY LOGS")) > 1:
            assert time.monotonic() < deadline, "the server does not release its old log files"
            self.server.run(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
            time.sleep(0.05)

    def advance_slot(self) -> None:
        self.cut_connections()
        mysql = self.server.flavour == "mysql"
        self.server.run("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")

    def hold_slot(self) -> AbstractContextManager[None]:
        raise NotImplementedError("any number of readers may read the log")

    def cut_connections(self) -> None:
        assert self.settings is not None
        self.server.kill_connections_of(self.settings.user)


class _StartedSource(MysqlSource):
    """A source whose log, in its first incarnation, starts at a given position."""

    def __init__(self, settings: MysqlSettings, begin: str) -> None:
        super().__init__(settings)
        self._begin = begin

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> MysqlLogStream:
        if resume is None and incarnation == 1:
            resume = ResumePoint(1, self._begin)
        return super().open_log(resume, incarnation)


class MysqlTransaction:
    """A transaction on its own connection. ``partial`` omits unset blobs from the log, ``logged=False`` everything."""

    def __init__(self, server: MysqlServer, *, partial: bool, logged: bool = True) -> None:
        self._connection = server.connect(autocommit=False)
        if not logged:
            self._execute("SET SESSION sql_log_bin = 0", [])
        if partial:
            self._execute("SET SESSION binlog_row_image = 'NOBLOB'", [])

    def __enter__(self) -> MysqlTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def insert(self, table: str, row: Row) -> None:
        columns, values = ", ".join(map(identifier, row)), ", ".join("%s" for _ in row)
        self._execute(f"INSERT INTO {_name(table)} ({columns}) VALUES ({values})", list(row.values()))

    def update(self, table: str, where: Row, values: Row) -> None:
        sets = ", ".join(f"{identifier(name)} = %s" for name in values)
        self._execute(f"UPDATE {_name(table)} SET {sets} WHERE {_equal(where)}", [*values.values(), *where.values()])

    def delete(self, table: str, where: Row) -> None:
        self._execute(f"DELETE FROM {_name(table)} WHERE {_equal(where)}", list(where.values()))

    def truncate(self, *tables: str) -> None:
        for table in tables:
            self._execute(f"TRUNCATE TABLE {_name(table)}", [])

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _execute(self, statement: str, values: Sequence[str | None]) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, list(values))


@contextmanager
def mysql_backend(server: MysqlServer) -> Iterator[MysqlBackend]:
    """Return the server as a backend, emptied before and after the block."""
    server.empty()
    yield MysqlBackend(server)
    server.empty()


def _name(table: str) -> str:
    return identifier(*split_qualified(table))


def _equal(where: Row) -> str:
    return " AND ".join([*(f"{identifier(name)} = %s" for name in where), "TRUE"])
