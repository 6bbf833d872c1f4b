"""Translates PyMySQL's errors into dblake's. The only module that matches the text of MySQL's and MariaDB's errors.

Guarantee: an error that only a person can correct exits 78, any other is worth a retry and exits 75. The driver's own
text is never passed on, since it may hold values or parts of statements.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
from pymysql.constants import CR, ER

from dblake.base.core.connection_faults import LOST
from dblake.base.core.errors import (
    ACCEPT_GAP,
    AWAIT_FAILOVER,
    DblakeError,
    PositionLost,
    PrerequisitesNotMet,
    SourceError,
    TableLocked,
    TableUnreadable,
)
from dblake.ingest.source.mysql.packets import DumpEnded
from dblake.ingest.source.mysql.settings import MysqlSettings

LACKS_PRIVILEGE = (
    ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.PROCACCESS_DENIED_ERROR,
)
_MAY_NOT_CREATE_USER = 1410
_LOGIN = (ER.ACCESS_DENIED_ERROR, 1698, 1862, 3118, 4151)
_RUN_PREFLIGHT = "run preflight, which prints the GRANT"
_LOCKED = ("the user's account is locked", "unlock it")
_PERMANENT = {
    ER.ACCESS_DENIED_ERROR: ("wrong password, or there is no such user for this host",
                             "correct source.user and source.password, or run preflight --init, which also names "
                             "users without a name that hide others"),
    ER.DBACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.TABLEACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.COLUMNACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.PROCACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.SPECIFIC_ACCESS_DENIED_ERROR: ("the user lacks a privilege", _RUN_PREFLIGHT),
    ER.HOST_NOT_PRIVILEGED: ("the server rejects all connections from this host", "create the user for this host"),
    ER.HOST_IS_BLOCKED: ("the server has blocked this host after failed connections", "run FLUSH HOSTS there"),
    ER.NO_SUCH_TABLE: ("a table is missing", "run preflight --init, which creates the watermark table"),
    1698: ("the user may not log in with a password", "create it with a password; preflight --init does"),
    1862: ("the password has expired", "set a new one"),
    3118: _LOCKED,
    3159: ("the server requires TLS", "set source.tls to verify or require"),
    4151: _LOCKED,
    CR.CR_SSL_CONNECTION_ERROR: ("the server does not support TLS",
                                 "enable it on the server, or set source.tls to disable"),
}
"""Errors that only a person can correct, by number: cause, next step."""
_UNREACHABLE = (
    ("ConnectionRefusedError", "connection refused: no server listens there"),
    ("TimeoutError", "connection timed out"),
    ("timed out", "connection timed out"),
    ("No route to host", "no route to that host"),
    ("unreachable", "the network is unreachable"),
    ("Too many connections", "the server has reached its connection limit"),
)
"""Errors that may pass: part of the text, cause."""
_OF_SERVER = (
    ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, ER.NET_PACKET_TOO_LARGE, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED,
    ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED, ER.QUERY_INTERRUPTED, ER.ABORTING_CONNECTION,
    ER.NEW_ABORTING_CONNECTION, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.OUT_OF_RESOURCES, 1927,
)
"""Errors of the server that concern the connection or the whole server; 1927 is MariaDB's for a killed connection."""
_FIRST_OF_SERVER, _FIRST_LATER = 1000, 3000
"""The server's errors are numbered from 1000 and from 3000 on, the client's from 2000."""
_WRONG_HOST = (62, 64)
"""OpenSSL's codes for a certificate of another host name or address."""
_LOG_UNREADABLE = 1236
_SAME_SERVER_ID = "the same server_uuid/server_id"
_LOG_LOST = ("first log file name", "Could not find next log", "Could not open log file", "impossible position",
             "file size", "truncated in the middle", "crc check", "bogus data")
"""Parts of the texts of error 1236, common to both flavours, where the log cannot be read on."""


@contextmanager
def translate_errors(settings: MysqlSettings) -> Iterator[None]:
    """Raise PrerequisitesNotMet or SourceError for a PyMySQL or socket error inside the block; dblake's own pass."""
    try:
        yield
    except DblakeError:
        raise
    except pymysql.Error as error:
        number = _number(error)
        _raise_unreachable(settings, getattr(error, "original_exception", None))
        if number in _PERMANENT:
            cause, next_step = _PERMANENT[number]
            raise PrerequisitesNotMet(f"source {settings.name}: {cause}", next_step=next_step) from error
        if number == ER.OPTION_PREVENTS_STATEMENT:
            raise SourceError(
                f"source {settings.name}: the server is read-only: watermarks cannot be written there",
                next_step=AWAIT_FAILOVER,
            ) from error
        raise _connection_failed(settings, error, f"error {number}" if number else LOST.cause) from error
    except OSError as error:
        _raise_unreachable(settings, error)
        raise _connection_failed(settings, error, LOST.cause) from error


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """Raise TableUnreadable or TableLocked for an error of the server that concerns the table read in the block.

    Errors of the connection or of the whole server pass unchanged.
    """
    try:
        yield
    except pymysql.Error as error:
        number = _number(error)
        if number == ER.LOCK_WAIT_TIMEOUT:
            raise TableLocked(
                f"table {table}: another session holds a lock on it",
                next_step="find that session with SHOW PROCESSLIST and end it, or wait for its end",
            ) from error
        if number in _OF_SERVER or number < _FIRST_OF_SERVER or CR.CR_ERROR_FIRST <= number < _FIRST_LATER:
            raise
        if number == ER.NO_SUCH_TABLE:
            raise TableUnreadable(
                f"table {table}: it was dropped or renamed", next_step="dump it when it is there again"
            ) from error
        cause, next_step = _PERMANENT.get(number, ("the server cannot read it", "see the server's error log"))
        raise TableUnreadable(f"table {table}: {cause} (error {number})", next_step=next_step) from error


@contextmanager
def translate_init_errors(settings: MysqlSettings, admin: str) -> Iterator[None]:
    """Raise PrerequisitesNotMet for a statement of ``--init`` that the server rejects inside the block."""
    try:
        yield
    except pymysql.Error as error:
        number = _number(error)
        if number in (*LACKS_PRIVILEGE, _MAY_NOT_CREATE_USER):
            raise PrerequisitesNotMet(
                f"source {settings.name}: user {admin} lacks a privilege that --init needs",
                next_step="hand the output of preflight --init --dry-run to an administrator of the server",
            ) from error
        raise PrerequisitesNotMet(
            f"source {settings.name}: --init failed: the server rejected a statement (error {number})",
            next_step="run preflight, which names the unmet prerequisites",
        ) from error


def concerns_login(error: SourceError) -> bool:
    """Return True if the server does not accept the user or its password."""
    cause = error.__cause__
    return isinstance(cause, pymysql.Error) and _number(cause) in _LOGIN


def log_error(settings: MysqlSettings, ended: DumpEnded, token: str) -> SourceError:
    """Return the error for a log stream that the server has ended; ``token`` is where it can be resumed."""
    where = f"source {settings.name}"
    if ended.number == 0:
        return SourceError(f"{where}: the server ended the log's stream", next_step="run again")
    # Each flavour has its own number for this one.
    if _SAME_SERVER_ID in ended.text:
        return SourceError(
            f"{where}: another replica has connected with server id {settings.server_id}",
            next_step="stop the other capture of this source, or set source.server_id to a number of its own",
        )
    if ended.number != _LOG_UNREADABLE:
        try:
            with translate_errors(settings):
                raise pymysql.OperationalError(ended.number, ended.text)
        except SourceError as error:
            return error
    if any(words in ended.text for words in _LOG_LOST):
        return PositionLost(f"{where}: the server cannot read its log after {token}, a gap", next_step=ACCEPT_GAP)
    if "max_allowed_packet" in ended.text:
        return PrerequisitesNotMet(
            f"{where}: an event is larger than the server's max_allowed_packet lets it send",
            next_step="SET GLOBAL max_allowed_packet = 1073741824",
        )
    return SourceError(
        f"{where}: the server cannot send its log (error {ended.number})", next_step="see the server's error log"
    )


def lacks_privilege(error: pymysql.Error) -> bool:
    """Return True if a statement failed for want of a privilege."""
    return _number(error) in LACKS_PRIVILEGE


def _number(error: pymysql.Error) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _raise_unreachable(settings: MysqlSettings, error: BaseException | None) -> None:
    reason = None
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        reason = "unknown host", "correct source.host"
    elif isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _WRONG_HOST:
        reason = "the server's certificate is for another host", "correct source.host"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = ("the server's certificate cannot be verified",
                  "name its CA's file in source.tls_ca, or set source.tls to require")
    if reason:
        raise PrerequisitesNotMet(f"source {settings.name}: {reason[0]}", next_step=reason[1]) from error


def _connection_failed(settings: MysqlSettings, error: BaseException, kind: str) -> SourceError:
    reasons = (cause for part, cause in _UNREACHABLE if part in repr(error))
    reason = next(reasons, f"the connection failed: {kind}")
    return SourceError(
        f"source {settings.name}: {settings.product} at {settings.host}:{settings.port}: {reason}",
        next_step="check that the server is up and reachable at source.host and source.port, then run again",
    )
