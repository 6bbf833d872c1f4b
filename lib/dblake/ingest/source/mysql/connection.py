"""Opens connections to MySQL and MariaDB, every one with the same pinned session settings.

Guarantee: values reach landing as the server stores them, so every setting that changes how it writes one is pinned: no
conversion of character sets, UTC, no SQL mode. Autocommit is on: otherwise the first statement would freeze the
snapshot that all later chunks read. A server of the other flavour than configured is rejected here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.base.core.tls import client_context
from dblake.ingest.source.mysql.driver_errors import translate_errors
from dblake.ingest.source.mysql.settings import MysqlSettings

_CONNECT_SECONDS = 10
_STATEMENT_SECONDS = 3600
"""Longest silence within a statement: the server may wait for a lock, or read a large table, for a long time."""

_PINNED = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ WRITE",
    # A reader waits while landing commits; the server must not take that for a client that is gone.
    "SET SESSION sql_mode = '', time_zone = '+00:00', character_set_results = NULL, sql_select_limit = DEFAULT,"
    " sql_safe_updates = 0, net_write_timeout = 3600, wait_timeout = 28800,"
    # No wait for a lock is long: what needs it is put off, and the log goes on.
    " lock_wait_timeout = 3, innodb_lock_wait_timeout = 3",
)
_PINNED_BY_FLAVOUR = {
    "mysql": "SET SESSION max_execution_time = 0",
    "mariadb": "SET SESSION max_statement_time = 0, query_cache_type = OFF",
}


@dataclass(frozen=True, slots=True, order=True)
class ServerVersion:
    """A server's flavour and version."""

    flavour: Literal["mysql", "mariadb"]
    number: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> ServerVersion:
        """Return the version that a server reports; MariaDB may prefix ``5.5.5-`` for old clients.

        >>> ServerVersion.parse("5.5.5-11.4.3-MariaDB-log").number
        (11, 4, 3)
        """
        match = re.match(r"(?:5\.5\.5-(?=\d))?(\d+)\.(\d+)(?:\.(\d+))?", text)
        numbers = match.groups() if match else ("0", "0", "0")
        major, minor, patch = (int(number or 0) for number in numbers)
        return cls("mariadb" if "mariadb" in text.lower() else "mysql", (major, minor, patch))

    def __str__(self) -> str:
        return f"{'MariaDB' if self.flavour == 'mariadb' else 'MySQL'} {'.'.join(map(str, self.number))}"


_HIDES_GENERATED_KEYS = ServerVersion("mysql", (8, 0, 30))


def connect(settings: MysqlSettings, *, purpose: str) -> pymysql.Connection:
    """Open an autocommit connection for statements. ``purpose`` shows among its attributes on the server.

    Raises PrerequisitesNotMet or SourceError.
    """
    with translate_errors(settings):
        conn = pymysql.connect(
            host=settings.host, port=settings.port, user=settings.user, password=settings.password,
            charset="utf8mb4", autocommit=True, program_name=f"dblake {settings.name} {purpose}",
            # An UPDATE then reports the rows that it matched, not those that it changed.
            client_flag=CLIENT.FOUND_ROWS, max_allowed_packet=1 << 30, defer_connect=True,
            read_timeout=_CONNECT_SECONDS, **_tls(settings),
        )
        conn.connect(_open_socket(settings))
        # The short limit is for the greeting alone.
        conn._read_timeout = _STATEMENT_SECONDS
        _require_flavour(conn, settings)
        with conn.cursor() as cur:
            for statement in (*_PINNED, _PINNED_BY_FLAVOUR[settings.flavour]):
                cur.execute(statement)
            if version_of(conn) >= _HIDES_GENERATED_KEYS:
                # The log has the primary keys that the server generates, so the catalog must show them.
                cur.execute("SET SESSION show_gipk_in_create_table_and_information_schema = ON")
        return conn


def version_of(conn: pymysql.Connection) -> ServerVersion:
    """Return the version of a connection's server."""
    return ServerVersion.parse(conn.get_server_info())


@contextmanager
def open_cursor(settings: MysqlSettings, *, purpose: str) -> Iterator[Cursor]:
    """Open a cursor on a connection of its own, for the few statements of the block."""
    conn = connect(settings, purpose=purpose)
    try:
        with translate_errors(settings), conn.cursor() as cur:
            yield cur
    finally:
        conn.close()


def _require_flavour(conn: pymysql.Connection, settings: MysqlSettings) -> None:
    version = version_of(conn)
    if version.flavour != settings.flavour:
        raise PrerequisitesNotMet(
            f"source {settings.name}: the server is {version}, but source.type is {settings.flavour}",
            next_step=f"set source.type to {version.flavour}",
        )


def _open_socket(settings: MysqlSettings) -> socket.socket:
    sock = socket.create_connection((settings.host, settings.port), _CONNECT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_USER_TIMEOUT", 60_000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


def _tls(settings: MysqlSettings) -> dict[str, Any]:
    if settings.tls == "disable":
        return {"ssl_disabled": True}
    try:
        context = client_context(settings.tls_ca, is_verified=settings.tls != "require", is_strict=False)
    except OSError as error:
        raise PrerequisitesNotMet(
            f"source {settings.name}: there is no CA file to verify the server with, or it cannot be read",
            next_step="correct source.tls_ca, which names a file of certificates in PEM",
        ) from error
    return {"ssl": context}
