"""The operated database: its catalog, its rows as text, and its server, which can stop and go back to a snapshot."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from psycopg2 import sql

from dblake.base.core.log_places import binlog_number
from dblake.ingest.source.mysql.sql_literals import identifier
from dblake.ingest.source.postgres.connection import open_cursor
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.primary import logging_snapshots
from dblake.ingest.source.postgres.statements import create_slot
from tests.support.backends import PostgresBackend
from tests.support.exports import Export, export
from tests.support.mysql import Flavour, MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import OPTIONS, Cluster, executed
from tests.support.postgres import Database
from tests.support.standby import create_standby

SCHEMA = "public"
MARKER = "marker"
"""The table whose row shows that a round's log has arrived; no operation touches it."""
Rows = list[dict[str, str | None]]
LOCK_SECONDS = 4


@dataclass(frozen=True, slots=True)
class Field:
    """A column as writers see it."""

    name: str
    type: str


class CapturedDatabase(Protocol):
    """What capture's configuration holds of a database."""

    def settings(self) -> dict[str, object]:
        """Return the ``source`` section of the configuration, without name, password and tables."""

    @property
    def password(self) -> str:
        """Return the capture role's password."""


class OperatedDatabase(CapturedDatabase, Protocol):
    """A database with tables in the schema ``public``; all access is the administrator's."""

    kind: str
    ignore_duplicates: tuple[str, str]
    """The words before INTO and behind the values of an INSERT that skips rows with a key that exists."""

    def connect(self) -> Any:
        """Return a connection, not in autocommit, that waits for locks for some seconds."""

    def run(self, *statements: str) -> None:
        """Execute each statement in its own transaction."""

    def tables(self) -> list[str]:
        """Return the names of all tables, without their partitions."""

    def columns(self, table: str) -> list[Field]:
        """Return the columns that can be written."""

    def key(self, table: str) -> list[str]:
        """Return the primary key's columns, in order."""

    def rows(self, table: str) -> Rows:
        """Return all rows, as text, with the columns that the log has."""

    def export(self, table: str, file: Path) -> Export:
        """Write a table to a file as the database's own tool does; return the options of its import."""

    def prepare(self) -> None:
        """Run ``preflight --init``."""

    @property
    def role(self) -> str:
        """Return the capture role, as a statement names it."""

    def log_end(self) -> int:
        """Return the current end of the log, as a number that rises."""

    def stop(self, *, crash: bool = False) -> None: ...

    def start(self) -> None: ...

    def copy_data(self) -> None:
        """Stop the server, copy its storage as the snapshot, start it."""

    def revert(self) -> None:
        """Crash the server, restore the snapshot, start it."""

    @property
    def has_snapshot(self) -> bool: ...

    def add_replica(self) -> None:
        """Let a replica follow the server, from where capture could continue."""

    def promote_replica(self, *, crash: bool) -> None:
        """Replace the server, at its address, by its replica; nothing may write until it returns."""


class _Stoppable(Protocol):
    def start(self) -> None: ...

    def stop(self, *, crash: bool = False) -> None: ...


class _OwnServer:
    """A server that stops, and goes back to a copy of its data folder."""

    def __init__(self, server: _Stoppable, data: Path) -> None:
        self._process, self._data, self._copy = server, data, data.with_name(f"{data.name}-snapshot")
        self._primaries = 1
        server.start()

    def _next_data(self) -> Path:
        """Return a folder for the next server's data."""
        self._primaries += 1
        return self._data.with_name(f"server-{self._primaries}")

    def _replace(self, server: _Stoppable, data: Path) -> None:
        """Take a server in the place of the one before; snapshots are of that one."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._process, self._data, self._copy = server, data, data.with_name(f"{data.name}-snapshot")

    def stop(self, *, crash: bool = False) -> None:
        self._process.stop(crash=crash)

    def start(self) -> None:
        self._process.start()

    @property
    def has_snapshot(self) -> bool:
        return self._copy.exists()

    def copy_data(self) -> None:
        self.stop()
        shutil.rmtree(self._copy, ignore_errors=True)
        _copy_folder(self._data, self._copy)
        self.start()

    def revert(self) -> None:
        self.stop(crash=True)
        shutil.rmtree(self._data)
        _copy_folder(self._copy, self._data)
        self.start()


def _copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder with the owners of its files."""
    subprocess.run(["cp", "-a", folder, to], check=True)


class PostgresOperated(_OwnServer):
    """A database of an own PostgreSQL server."""

    kind = "postgres"
    ignore_duplicates = ("", "ON CONFLICT DO NOTHING")

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder / "server", settings={"fsync": "off"})
        super().__init__(self._server, folder / "server")
        self._backend = PostgresBackend(Database(self._server, "postgres"))
        self._standby: EmbeddedPostgres | None = None

    def add_replica(self) -> None:
        known, old = self._backend.settings, self._server
        assert known is not None
        self._standby = create_standby(old, self._next_data(), version=16, fsync="off")
        self._standby.start()
        at_standby = replace(
            known, port=self._standby.port, primary=(known.host, known.port), user=old.user, password=old.password
        )
        with open_cursor(at_standby, purpose="slot") as cur, logging_snapshots(at_standby):
            cur.execute(create_slot(at_standby, cur.connection.server_version))

    def promote_replica(self, *, crash: bool) -> None:
        standby, old = self._standby, self._server
        assert standby is not None, "add_replica comes first"
        replica = Database(standby, "postgres")
        ((end,),) = self._query("SELECT pg_current_wal_insert_lsn()::text")
        while replica.rows("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", (end,)) != [(False,)]:
            time.sleep(0.1)
        old.stop(crash=crash)
        replica.rows("SELECT pg_promote()")
        standby.stop()
        standby.port = old.port
        self._server, self._standby = standby, None
        self._backend.database = Database(standby, "postgres")
        self._replace(standby, self._data.with_name(f"server-{self._primaries}"))
        standby.start()

    def connect(self) -> Any:
        connection = self._server.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
        connection.autocommit = False
        return connection

    def run(self, *statements: str) -> None:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            for statement in statements:
                cursor.execute(statement)

    def tables(self) -> list[str]:
        return [name for (name,) in self._query(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition ORDER BY 1"
        )]

    def columns(self, table: str) -> list[Field]:
        return [Field(*row) for row in self._query(
            "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum", (f"public.{table}",)
        )]

    def key(self, table: str) -> list[str]:
        return [name for (name,) in self._query(
            "SELECT a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(n, o)"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n"
            " WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.o", (f"public.{table}",)
        )]

    def rows(self, table: str) -> Rows:
        names = [field.name for field in self.columns(table)]
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
        found = self._query(sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier(SCHEMA, table)))
        return [dict(zip(names, row, strict=True)) for row in found]

    def export(self, table: str, file: Path) -> Export:
        return export(self._backend, f"{SCHEMA}.{table}", file)

    def log_end(self) -> int:
        return self._backend.log_end()

    def prepare(self) -> None:
        if self._backend.settings is None:
            self._backend.source("public.*")
        else:
            run_init(self._backend.settings, self._server.user, self._server.password)

    def settings(self) -> dict[str, object]:
        known = self._backend.settings
        assert known is not None
        return {
            "type": self.kind, "host": known.host, "port": known.port, "user": known.user, "tls": "disable",
            "database": known.database, "slot": known.slot, "publication": known.publication,
        }

    @property
    def password(self) -> str:
        assert self._backend.settings is not None
        return self._backend.settings.password

    @property
    def role(self) -> str:
        assert self._backend.settings is not None
        return self._backend.settings.user

    def _query(self, query: Any, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._backend.database.rows(query, parameters)


class MysqlOperated(_OwnServer):
    """A database of an own MariaDB or MySQL server."""

    ignore_duplicates = ("IGNORE", "")

    def __init__(self, kind: Flavour, folder: Path) -> None:
        self.kind: str = kind
        self._flavour: Flavour = kind
        self._cluster: Cluster | None = None
        self.server = self._new_server(folder / "server")
        super().__init__(self.server, folder / "server")
        self.server.run(f"CREATE DATABASE {SCHEMA}")
        self._backend = MysqlBackend(self.server)

    def _new_server(self, data: Path, *options: str) -> MysqlServer:
        return MysqlServer(
            self._flavour, data, "--sql-mode=", f"--lock-wait-timeout={LOCK_SECONDS}",
            f"--innodb-lock-wait-timeout={LOCK_SECONDS}",
            # Otherwise a server that is killed loses transactions that are in its log.
            "--innodb-flush-log-at-trx-commit=1", *OPTIONS[self._flavour], *options,
        )

    def add_replica(self) -> None:
        data = self._next_data()
        self.stop()
        _copy_folder(self._data, data)
        (data / "auto.cnf").unlink(missing_ok=True)
        self.start()
        replica = self._new_server(data, f"--server-id={100 + self._primaries}")
        replica.start()
        if self.kind == "mariadb":
            replica.run(f"SET GLOBAL gtid_slave_pos = '{executed(replica)}'")
        self._cluster = Cluster([self.server, replica])
        # Positions of the two logs differ from here on.
        self.server.run("FLUSH BINARY LOGS")

    def promote_replica(self, *, crash: bool) -> None:
        assert self._cluster is not None, "add_replica comes first"
        (replica,), old = self._cluster.replicas, self.server
        self._cluster.wait()
        old.stop(crash=crash)
        self._cluster.promote(replica)
        replica.stop()
        replica.port = old.port
        self.server = self._backend.server = replica
        self._replace(replica, replica.data)
        replica.start()

    def connect(self) -> Any:
        connection = self.server.connect(SCHEMA, autocommit=False)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'ANSI_QUOTES'")
        return connection

    def run(self, *statements: str) -> None:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            for statement in (f"USE {SCHEMA}", *statements):
                cursor.execute(statement)

    def tables(self) -> list[str]:
        return [str(name) for (name,) in self.server.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
            " AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1", (SCHEMA,)
        )]

    def columns(self, table: str) -> list[Field]:
        return [Field(str(name), str(kind)) for name, kind in self.server.rows(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
            " AND extra NOT LIKE '%% GENERATED%%' ORDER BY ordinal_position", (SCHEMA, table)
        )]

    def key(self, table: str) -> list[str]:
        return [str(name) for (name,) in self.server.rows(
            "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s"
            " AND index_name = 'PRIMARY' ORDER BY seq_in_index", (SCHEMA, table)
        )]

    def rows(self, table: str) -> Rows:
        with closing(self.server.connect(conv={})) as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4")
            cursor.execute(f"SELECT * FROM {identifier(SCHEMA, table)}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def export(self, table: str, file: Path) -> Export:
        return export(self._backend, f"{SCHEMA}.{table}", file)

    def log_end(self) -> int:
        ((file, offset, *_),) = self.server.rows(
            "SHOW MASTER STATUS" if self.kind == "mariadb" else "SHOW BINARY LOG STATUS"
        )
        return binlog_number(file, offset)

    def prepare(self) -> None:
        self._backend.source("public.*")

    def settings(self) -> dict[str, object]:
        known = self._backend.settings
        assert known is not None
        return {"type": self.kind, "host": known.host, "port": known.port, "user": known.user, "tls": "disable"}

    @property
    def password(self) -> str:
        assert self._backend.settings is not None
        return self._backend.settings.password

    @property
    def role(self) -> str:
        return str(self.server.rows("SELECT concat(quote(user), '@', quote(host)) FROM mysql.user WHERE user = 'cap'")
                   [0][0])


def operated_database(kind: str, folder: Path) -> OperatedDatabase:
    """Start an own server and return its database. ``stop`` ends the server."""
    if kind == "postgres":
        return PostgresOperated(folder)
    return MysqlOperated("mysql" if kind == "mysql" else "mariadb", folder)
