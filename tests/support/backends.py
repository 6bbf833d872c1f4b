"""What the conformance suite asks of a database, and how the memory twin and PostgreSQL give it.

``Backend`` is what a new kind of source has to write to be held to the suite; ``mysql_backend`` has MySQL's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from psycopg2 import sql

from dblake.core.names import split_qualified
from dblake.core.schema import Column, TableSchema
from dblake.core.source import Source
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.source import MemorySource
from dblake.source.postgres.connection import connect, connect_replication
from dblake.source.postgres.init import run_init
from dblake.source.postgres.pgoutput import lsn_number
from dblake.source.postgres.settings import PostgresSettings
from dblake.source.postgres.source import PostgresSource
from tests.support.postgres import Database

Row = dict[str, str | None]
WATERMARKS = "dblake.watermark"


class Transaction(Protocol):
    """A transaction of an application. Its block's end commits it; so does ``commit``, after which nothing follows."""

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
    """A database to hold a source against. Values are canonical text everywhere; types are PostgreSQL's words.

    Databases differ in what there is to ask: whether they keep the log for a reader that they know by name and that
    tells them what is safe (a slot), number their transactions, and truncate several tables in one transaction.
    """

    keeps_log_for_reader: bool
    has_txids: bool
    truncates_together: bool

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        """A table; updates that do not set ``toasted`` columns do not log them if their value is long."""

    def add_column(self, table: str, column: Column, default: str) -> None:
        """A further column, with a value in the rows that are there."""

    def begin(self) -> Transaction: ...

    def vanish(self, table: str, where: Row) -> None:
        """Deletes rows without a word in the log."""

    def rows(self, table: str) -> list[Row]:
        """What is there, in no particular order."""

    def source(self, *patterns: str) -> Source:
        """The source, made ready the first time: its log begins there."""

    def other_slot(self) -> Source:
        """The same server's log, read through a slot of its own."""

    def log_end(self) -> int:
        """Where the log ends now."""

    def confirmed(self) -> int:
        """Up to where the database was told that its log is safe with us."""

    def drop_slot(self) -> None: ...

    def advance_slot(self) -> None:
        """As if somebody else had read the log and thrown it away."""

    def slot_taken(self) -> AbstractContextManager[None]: ...

    def cut_connections(self) -> None:
        """All connections of the capture break."""


class MemoryBackend:
    """The memory twin."""

    keeps_log_for_reader = has_txids = truncates_together = True

    def __init__(self) -> None:
        self.database = MemoryDatabase()

    def create(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        self.database.create_table(schema, toasted=toasted)

    def add_column(self, table: str, column: Column, default: str) -> None:
        before = self.database.table(table).schema
        self.database.alter_table(
            replace(before, columns=(*before.columns, column)), {column.name: default}
        )

    def begin(self) -> Transaction:
        return self.database.begin()

    def vanish(self, table: str, where: Row) -> None:
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
    def slot_taken(self) -> Iterator[None]:
        stream = self.source("*.*").open_log(None, 1)
        yield
        stream.close()

    def cut_connections(self) -> None:
        self.database.cut_connections()


class PostgresBackend:
    """A database on a PostgreSQL server."""

    keeps_log_for_reader = has_txids = truncates_together = True

    def __init__(self, database: Database, plugin: Literal["pgoutput", "wal2json"] = "pgoutput") -> None:
        self.database = database
        self.plugin = plugin
        self.settings: PostgresSettings | None = None

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
        return PostgresTransaction(self.database)

    def vanish(self, table: str, where: Row) -> None:
        if self.plugin == "wal2json":
            name = _name(table)
            self.run(sql.SQL("ALTER TABLE {} SET UNLOGGED").format(name))
            with self.begin() as transaction:
                transaction.delete(table, where)
            self.run(sql.SQL("ALTER TABLE {} SET LOGGED").format(name))
            return
        # What is published is decided by what was said when it happened.
        self.run("ALTER PUBLICATION p SET (publish = 'insert, update, truncate')")
        with self.begin() as transaction:
            transaction.delete(table, where)
        self.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")

    def rows(self, table: str) -> list[Row]:
        assert self.settings is not None, "source() makes it ready"
        connection = connect(self.settings, purpose="test")
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(_name(table)))
                names = [column.name for column in cursor.description]
                # concat() writes a value as the log does, which a cast to text does not for all types.
                told = sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN concat({0}) END")
                columns = sql.SQL(", ").join(told.format(sql.Identifier(name)) for name in names)
                cursor.execute(sql.SQL("SELECT {} FROM {}").format(columns, _name(table)))
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()

    def source(self, *patterns: str) -> Source:
        if self.settings is None:
            server, name = self.database.server, self.database.name
            self.settings = PostgresSettings(
                name="shop", host="127.0.0.1", port=server.port, database=name, user=f"cap_{name}", password="secret",
                patterns=patterns, tls="disable", plugin=self.plugin, slot=f"slot_{name}", publication="p",
            )
            run_init(self.settings, server.user, server.password)
        self.settings = replace(self.settings, patterns=patterns)
        return PostgresSource(self.settings)

    def run(self, *statements: str | sql.Composable) -> None:
        """Each statement in a transaction of its own, as superuser."""
        connection = self.database.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def value(self, query: str, *parameters: object) -> Any:
        """One value, as superuser."""
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
        return lsn_number(self.value(query, self.settings.slot))

    def drop_slot(self) -> None:
        assert self.settings is not None
        self.value("SELECT pg_drop_replication_slot(%s)", self.settings.slot)

    def advance_slot(self) -> None:
        assert self.settings is not None
        self.value("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", self.settings.slot)

    @contextmanager
    def slot_taken(self) -> Iterator[None]:
        assert self.settings is not None
        other = connect_replication(self.settings)
        with other.cursor() as cursor:
            options = {"proto_version": "1", "publication_names": '"p"'} if self.plugin == "pgoutput" else {}
            cursor.start_replication(slot_name=self.settings.slot, decode=False, options=options)
            yield
        other.close()

    def cut_connections(self) -> None:
        assert self.settings is not None
        self.value(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE usename = %s", self.settings.user
        )

    def close(self) -> None:
        """Removes the capture role, which is the server's and not the database's."""
        if self.settings is not None:
            self.cut_connections()
            self.run(f"DROP OWNED BY {self.settings.user}", f"DROP ROLE {self.settings.user}")


class PostgresTransaction:
    """A transaction on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connect()
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
