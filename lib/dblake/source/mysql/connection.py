"""Connections to MySQL and MariaDB, every one with the same pinned session.

Values reach landing as the server holds them, so whatever changes how it writes one is pinned: no conversion of
character sets on the way out, UTC, no SQL mode. Autocommit is on: with it off, the first statement would freeze what
all later chunks see. A server of the other flavour than configured is refused here, since nothing else would fit it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pymysql
from pymysql.constants import CLIENT, CR, ER
from pymysql.cursors import Cursor

from dblake.core.errors import DblakeError, PrerequisitesNotMet, SourceError
from dblake.source.mysql.settings import MysqlSettings

_CONNECT_SECONDS = 10
_STATEMENT_SECONDS = 3600
"""Longest silence within a statement: the server may wait for a lock, or read a large table, for a long time."""

_PINNED = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ WRITE",
    # Landing holds a reader up while it commits, and the server would take that for a client that is gone.
    "SET SESSION sql_mode = '', time_zone = '+00:00', character_set_results = NULL, sql_select_limit = DEFAULT,"
    " sql_safe_updates = 0, net_write_timeout = 3600, wait_timeout = 28800",
)
_PINNED_BY_FLAVOUR = {
    "mysql": "SET SESSION max_execution_time = 0",
    "mariadb": "SET SESSION max_statement_time = 0, query_cache_type = OFF",
}

_RUN_PREFLIGHT = "run preflight, which names the privilege with its GRANT"
#: Error numbers of what only a person can mend; anything else may heal by itself.
_PERMANENT = {
    ER.ACCESS_DENIED_ERROR: ("wrong password, or there is no such user for this host",
                             "correct source.user and source.password, or run preflight --init"),
    ER.DBACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.TABLEACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.COLUMNACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.SPECIFIC_ACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.HOST_NOT_PRIVILEGED: ("the server lets nobody in from this host", "create the user for this host"),
    ER.HOST_IS_BLOCKED: ("the server has blocked this host after failed connections", "run FLUSH HOSTS there"),
    ER.OPTION_PREVENTS_STATEMENT: ("the server is read-only: watermarks cannot be written there",
                                   "set source.host to the primary"),
    ER.NO_SUCH_TABLE: ("a table is missing", "run preflight --init, which makes the watermark table"),
    1698: ("the user may not log in with a password", "create it with a password; preflight --init does"),
    1862: ("the password has expired", "set it anew"),
    3118: ("the user's account is locked", "unlock it"),
    3159: ("the server wants TLS", "set source.tls to verify or require"),
    4151: ("the user's account is locked", "unlock it"),
    CR.CR_SSL_CONNECTION_ERROR: ("the server does not speak TLS", "turn it on there, or set source.tls to disable"),
}


@dataclass(frozen=True, slots=True, order=True)
class ServerVersion:
    """Who answers, and which version of it."""

    flavour: Literal["mysql", "mariadb"]
    number: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> ServerVersion:
        """What the server says of itself; ``5.5.5-`` is for clients that cannot read two digits.

        >>> ServerVersion.parse("5.5.5-11.4.3-MariaDB-log").number
        (11, 4, 3)
        """
        match = re.match(r"(?:5\.5\.5-(?=\d))?(\d+)\.(\d+)(?:\.(\d+))?", text)
        numbers = match.groups() if match else ("0", "0", "0")
        major, minor, patch = (int(number or 0) for number in numbers)
        return cls("mariadb" if "mariadb" in text.lower() else "mysql", (major, minor, patch))

    def __str__(self) -> str:
        return f"{'MariaDB' if self.flavour == 'mariadb' else 'MySQL'} {'.'.join(map(str, self.number))}"


_HIDES_KEYS = ServerVersion("mysql", (8, 0, 30))


def connect(settings: MysqlSettings, *, purpose: str) -> pymysql.Connection:
    """An autocommit connection for statements. ``purpose`` shows among the connection's attributes on the server."""
    with explained(settings):
        conn = pymysql.connect(
            host=settings.host, port=settings.port, user=settings.user, password=settings.password,
            charset="utf8mb4", autocommit=True, program_name=f"dblake {settings.name} {purpose}",
            # An UPDATE tells how many rows it found, not how many it changed.
            client_flag=CLIENT.FOUND_ROWS, max_allowed_packet=1 << 30, defer_connect=True,
            read_timeout=_CONNECT_SECONDS, **_tls(settings),
        )
        conn.connect(_socket(settings))
        # The short limit is for the greeting only.
        conn._read_timeout = _STATEMENT_SECONDS
        _require_flavour(conn, settings)
        with conn.cursor() as cur:
            for statement in (*_PINNED, _PINNED_BY_FLAVOUR[settings.flavour]):
                cur.execute(statement)
            if version_of(conn) >= _HIDES_KEYS:
                # The log has the keys that the server makes by itself, so the catalogue must show them.
                cur.execute("SET SESSION show_gipk_in_create_table_and_information_schema = ON")
        return conn


def version_of(conn: pymysql.Connection) -> ServerVersion:
    """Which server a connection is to."""
    return ServerVersion.parse(conn.get_server_info())


def _require_flavour(conn: pymysql.Connection, settings: MysqlSettings) -> None:
    version = version_of(conn)
    if version.flavour != settings.flavour:
        raise PrerequisitesNotMet(
            f"source {settings.name}: the server is {version}, but source.type is {settings.flavour}",
            next_step=f"set source.type to {version.flavour}",
        )


def _socket(settings: MysqlSettings) -> socket.socket:
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
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as error:  # which is what ssl's own are, too
        raise PrerequisitesNotMet(
            f"source {settings.name}: there is no CA file to verify the server with, or none that can be read",
            next_step="correct source.tls_ca, which names a file of certificates in PEM",
        ) from error
    # The certificates these servers make for themselves, and those of many a company, lack what strict checks want.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if settings.tls == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


@contextmanager
def asking(settings: MysqlSettings, *, purpose: str) -> Iterator[Cursor]:
    """A cursor on a connection that is there for these few statements only."""
    conn = connect(settings, purpose=purpose)
    try:
        with explained(settings), conn.cursor() as cur:
            yield cur
    finally:
        conn.close()


@contextmanager
def explained(settings: MysqlSettings) -> Iterator[None]:
    """Turns the driver's errors into ours: what a person must mend exits 78, all else is worth another try.

    The driver's own text is not passed on, since it may hold values or parts of statements.
    """
    try:
        yield
    except DblakeError:
        raise
    except pymysql.Error as error:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        _explain_network(settings, getattr(error, "original_exception", None))
        if number in _PERMANENT:
            meaning, mend = _PERMANENT[number]
            raise PrerequisitesNotMet(f"source {settings.name}: {meaning}", next_step=mend) from error
        raise _failed(settings, f"{type(error).__name__}{f' {number}' if number else ''}") from error
    except OSError as error:
        _explain_network(settings, error)
        raise _failed(settings, type(error).__name__) from error


def _explain_network(settings: MysqlSettings, error: BaseException | None) -> None:
    found = None
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        found = "unknown host", "correct source.host"
    elif isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (62, 64):
        found = "the server's certificate is for another host", "correct source.host"
    elif isinstance(error, ssl.SSLCertVerificationError):
        found = ("the server's certificate cannot be verified",
                 "name its CA's file in source.tls_ca, or set source.tls to require")
    if found:
        raise PrerequisitesNotMet(f"source {settings.name}: {found[0]}", next_step=found[1]) from error


def _failed(settings: MysqlSettings, what: str) -> SourceError:
    return SourceError(
        f"source {settings.name}: the connection to {settings.product} failed: {what}",
        next_step="see that the server is up and reachable at source.host and source.port; then run again",
    )
