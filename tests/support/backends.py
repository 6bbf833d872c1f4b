"""The interface between the conformance suite and a database, with implementations for the memory twin and PostgreSQL.

A new kind of source implements ``Backend`` to run the suite; ``mysql_backend`` has the implementation for MySQL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from psycopg2 import sql

from dblake.base.core.log_places import lsn_number
from dblake.base.core.names import split_qualified
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.ingest.source.postgres.capture_objects import MESSAGE_PREFIX
from dblake.ingest.source.postgres.connection import connect, connect_replication
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from dblake.ingest.source.postgres.watermarks import parse_watermark_message
from tests.support.postgres import Database, end_sessions

Row = dict[str, str | None]
WATERMARKS = "dblake.watermark"


class Transaction(Protocol):
    """An application's transaction. The end of its block commits it; so does ``commit``, after which it is closed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def insert(self, table: str, row: Row) -> None: ...

    def update(self, table: str, where: Row, values: Row) -> None: ...

    def delete(self, table: str, where: Row) -> None: ...

    def truncate(self, *tables: str) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class Backend(Protocol):
    """A database under test. Values are canonical text, column types are PostgreSQL's names.

    Capabilities differ: ``keeps_log_for_reader`` (a slot retains the log for a named reader and receives confirmed
    positions), ``has_txids`` (transactions are numbered), ``has_watermark_rows`` (watermarks are rows, not messages),
    ``truncates_together`` (one transaction truncates several tables).
    """

    keeps_log_for_reader: bool
    has_txids: bool
    has_watermark_rows: bool
    truncates_together: bool

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        """Create a table. An update that does not set a ``toasted`` column does not log its value if it is long."""

    def add_column(self, table: str, column: Column, default: str) -> None:
        """Add a column; existing rows get the value ``default``."""

    def begin(self) -> Transaction: ...

    def delete_unlogged(self, table: str, where: Row) -> None:
        """Delete rows without a log entry."""

    def rows(self, table: str) -> list[Row]:
        """Return the table's current rows, in no particular order."""

    def source(self, *patterns: str) -> Source:
        """Return the source. The first call initializes it: its log begins there."""

    def other_slot(self) -> Source:
        """Return a source that reads the same server's log through another slot."""

    def log_end(self) -> int:
        """Return the current end of the log."""

    def confirmed(self) -> int:
        """Return the log position that capture has confirmed to the database as landed."""

    def drop_slot(self) -> None: ...

    def advance_slot(self) -> None:
        """Move the slot to the end of the log, as a foreign reader that discards the log would."""

    def hold_slot(self) -> AbstractContextManager[None]:
        """Occupy the slot within the block."""

    def cut_connections(self) -> None:
        """Break all connections of capture."""


class MemoryBackend:
    """The memory twin."""

    keeps_log_for_reader = has_txids = has_watermark_rows = truncates_together = True

    def __init__(self) -> None:
        self.database = MemoryDatabase()

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        self.database.create_table(schema, toasted=toasted)

    def add_column(self, table: str, column: Column, default: str) -> None:
        schema = self.database.table(table).schema
        self.database.alter_table(
            replace(schema, columns=(*schema.columns, column)), {column.name: default}
        )

    def begin(self) -> Transaction:
        return self.database.begin()

    def delete_unlogged(self, table: str, where: Row) -> None:
        rows = self.database.table(table).rows
        for key in [key for key, row in rows.items() if where.items() <= row.items()]:
            del rows[key]

    def rows(self, table: str) -> list[Row]:
        return self.database.rows(table)

    def source(self, *patterns: str) -> Source:
        if not self.database.slots:
            self.database.make_slot("shop")
        return MemorySource(self.database, name="shop", patterns=patterns)

    def other_slot(self) -> Source:
        self.database.make_slot("other")
        return MemorySource(self.database, name="shop", slot="other")

    def log_end(self) -> int:
        return self.database.end

    def confirmed(self) -> int:
        return self.database.slots["shop"].confirmed

    def drop_slot(self) -> None:
        del self.database.slots["shop"]

    def advance_slot(self) -> None:
        self.database.confirm("shop", self.database.end)

    @contextmanager
    def hold_slot(self) -> Iterator[None]:
        stream = self.source("*.*").open_log(None, 1)
        yield
        stream.close()

    def cut_connections(self) -> None:
        self.database.cut_connections()


class PostgresBackend:
    """A database on a PostgreSQL server."""

    keeps_log_for_reader = has_txids = truncates_together = True

    def __init__(self, database: Database, *, watermarks: Literal["table", "messages"] = "table") -> None:
        self.database = database
        self.settings: PostgresSettings | None = None
        self.admin = (database.server.user, database.server.password)
        """Who runs ``--init``."""
        self._watermarks, self.has_watermark_rows = watermarks, watermarks == "table"

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        name = _name(schema.table)
        columns = [
            sql.SQL("{} " + c.type + ("" if c.nullable else " NOT NULL")).format(sql.Identifier(c.name))
            for c in schema.columns
        ]
        if schema.primary_key:
            key = sql.SQL(", ").join(map(sql.Identifier, schema.primary_key))
            columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
        statements = [sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(columns))]
        if not schema.primary_key:
            statements.append(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
        for column in toasted:
            external = "ALTER TABLE {} ALTER COLUMN {} SET STORAGE EXTERNAL"
            statements.append(sql.SQL(external).format(name, sql.Identifier(column)))
        self.run(*statements)

    def add_column(self, table: str, column: Column, default: str) -> None:
        text = "ALTER TABLE {} ADD COLUMN {} " + column.type + " DEFAULT {}"
        self.run(sql.SQL(text).format(_name(table), sql.Identifier(column.name), sql.Literal(default)))

    def begin(self) -> Transaction:
        return PostgresTransaction(self.database, has_watermark_rows=self.has_watermark_rows)

    def delete_unlogged(self, table: str, where: Row) -> None:
        # The publication that is current when a change happens decides whether it is published.
        self.run("ALTER PUBLICATION p SET (publish = 'insert, update, truncate')")
        with self.begin() as transaction:
            transaction.delete(table, where)
        self.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")

    def rows(self, table: str) -> list[Row]:
        assert self.settings is not None, "call source() first"
        if table == WATERMARKS and not self.has_watermark_rows:
            return self._read_messages()
        connection = connect(self.settings, purpose="test")
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(_name(table)))
                names = [column.name for column in cursor.description]
                # concat() formats a value as the log does; a cast to text differs for some types.
                as_logged = sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN concat({0}) END")
                columns = sql.SQL(", ").join(as_logged.format(sql.Identifier(name)) for name in names)
                cursor.execute(sql.SQL("SELECT {} FROM {}").format(columns, _name(table)))
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()

    def _read_messages(self) -> list[Row]:
        """Return the last watermark of each reader, as rows of the table that is not there."""
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes('observer_' || current_database(), NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        )
        messages = [bytes(data) for (data,) in self.database.rows(query)]
        marks = [parse_watermark_message(data) for data in messages if data[:1] == b"M"]
        return [{"id": str(reader), "value": value} for reader, value in dict(filter(None, marks)).items()]

    def source(self, *patterns: str) -> Source:
        if self.settings is None:
            server, name = self.database.server, self.database.name
            self.settings = PostgresSettings(
                name="shop", host="127.0.0.1", port=server.port, database=name, user=f"cap_{name}", password="secret",
                patterns=patterns, tls="disable", slot=f"slot_{name}", publication="p", watermarks=self._watermarks,
            )
            self.settings = self.at_log(self.settings)
            run_init(self.settings, *self.admin)
            if not self.has_watermark_rows:
                self.value("SELECT pg_create_logical_replication_slot('observer_' || current_database(), 'pgoutput')")
        self.settings = replace(self.settings, patterns=patterns)
        return PostgresSource(self.settings)

    def at_log(self, settings: PostgresSettings) -> PostgresSettings:
        """Return the settings with the server whose log is read."""
        return settings

    @property
    def log_database(self) -> Database:
        """The database on the server whose log is read."""
        return self.database

    def run(self, *statements: str | sql.Composable) -> None:
        """Execute each statement as superuser, in its own transaction."""
        connection = self.database.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def value(self, query: str, *parameters: object) -> Any:
        """Return one value as superuser."""
        return self.database.rows(query, parameters)[0][0]

    def other_slot(self) -> Source:
        assert self.settings is not None
        other = replace(self.settings, slot=f"{self.settings.slot}_b")
        run_init(other, self.database.server.user, self.database.server.password)
        return PostgresSource(other)

    def log_end(self) -> int:
        return lsn_number(self.value("SELECT pg_current_wal_lsn()::text"))

    def confirmed(self) -> int:
        assert self.settings is not None
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        return lsn_number(self._log_value(query, self.settings.slot))

    def drop_slot(self) -> None:
        self._log_value("SELECT pg_drop_replication_slot(%s)", self._await_free_slot())

    def advance_slot(self) -> None:
        slot = self._await_free_slot()
        end = self.value("SELECT pg_current_wal_lsn()::text")
        self._log_value("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", slot, end)

    def _log_value(self, query: str, *parameters: object) -> Any:
        return self.log_database.rows(query, parameters)[0][0]

    def _await_free_slot(self) -> str:
        """Return the slot's name once no walsender holds it: one ends a moment after its client."""
        assert self.settings is not None
        slot, deadline = str(self.settings.slot), time.monotonic() + 10
        while self._log_value("SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot):
            assert time.monotonic() < deadline, f"slot {slot} is still in use"
            time.sleep(0.05)
        return slot

    @contextmanager
    def hold_slot(self) -> Iterator[None]:
        assert self.settings is not None
        other = connect_replication(self.settings)
        with other.cursor() as cursor:
            options = {"proto_version": "1", "publication_names": '"p"'}
            cursor.start_replication(slot_name=self.settings.slot, decode=False, options=options)
            yield
        other.close()

    def cut_connections(self) -> None:
        assert self.settings is not None
        for database in {self.database, self.log_database}:
            end_sessions(database, "usename = %s", self.settings.user)

    def close(self) -> None:
        """Drop the capture role, which belongs to the server and outlives the database."""
        if self.settings is not None:
            self.cut_connections()
            self.run(f"DROP OWNED BY {self.settings.user}", f"DROP ROLE {self.settings.user}")


class StandbyBackend(PostgresBackend):
    """A database on a PostgreSQL server whose log is read from its standby."""

    def __init__(self, database: Database, standby: EmbeddedPostgres) -> None:
        super().__init__(database)
        self._standby = standby

    def at_log(self, settings: PostgresSettings) -> PostgresSettings:
        primary = ("127.0.0.1", settings.port)
        return replace(settings, port=self._standby.port, primary=primary)

    @property
    def log_database(self) -> Database:
        return replace(self.database, server=self._standby)

    def close(self) -> None:
        super().close()
        # The primary cannot drop the database while a slot of the standby is in it.
        end_sessions(self.log_database, "datname = %s", self.database.name)
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
        Database(self._standby, "postgres").rows(query, (self.database.name,))

    def rows(self, table: str) -> list[Row]:
        assert self.settings is not None, "call source() first"
        log, self.settings = self.settings, self.settings.at_primary()
        try:
            return super().rows(table)
        finally:
            self.settings = log


class PostgresTransaction:
    """A transaction on its own connection. Without watermark rows, their updates are log messages."""

    def __init__(self, database: Database, *, has_watermark_rows: bool = True) -> None:
        self._connection, self._has_watermark_rows = database.connect(), has_watermark_rows
        self._connection.autocommit = False

    def __enter__(self) -> PostgresTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def insert(self, table: str, row: Row) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, row))
        values = sql.SQL(", ").join(sql.Placeholder() for _ in row)
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(_name(table), columns, values)
        self._execute(statement, list(row.values()))

    def update(self, table: str, where: Row, values: Row) -> None:
        if table == WATERMARKS and not self._has_watermark_rows:
            content = f"{where['id']} {values['value'] or ''}"
            self._execute(sql.SQL("SELECT pg_logical_emit_message(true, %s, %s)"), [MESSAGE_PREFIX, content])
            return
        sets = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in values)
        statement = sql.SQL("UPDATE {} SET {} WHERE {}").format(_name(table), sets, _equal(where))
        self._execute(statement, [*values.values(), *where.values()])

    def delete(self, table: str, where: Row) -> None:
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(_name(table), _equal(where))
        self._execute(statement, list(where.values()))

    def truncate(self, *tables: str) -> None:
        self._execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(_name, tables))), [])

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()

    def _execute(self, statement: sql.Composable, values: Sequence[str | None]) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*split_qualified(table))


def _equal(where: Row) -> sql.Composable:
    tests = [sql.SQL("{} = %s").format(sql.Identifier(name)) for name in where]
    return sql.SQL(" AND ").join([*tests, sql.SQL("true")])
