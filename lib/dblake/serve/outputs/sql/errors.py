"""Errors of a target database by their cause: host, port, what is wrong, what to do.

Guarantee: without values, statements, connection strings and names of the drivers' classes; retryable unless only a
person can correct the cause.
"""

from __future__ import annotations

from dblake.base.core.connection_faults import (
    BUSY,
    LOST,
    NO_DATABASE,
    NO_LOGIN,
    NO_TLS,
    STARTING,
    TLS_REQUIRED,
    WRONG_PASSWORD,
    ConnectionFault,
)
from dblake.base.core.errors import ConsumeError, DblakeError, OutputUnavailable
from dblake.serve.outputs.sql.settings import SqlSettings

_NO_PRIVILEGE = ConnectionFault(
    "the role lacks a privilege", "grant it CREATE, and all privileges on the tables that it is to write"
)
_READ_ONLY = ConnectionFault("the server is read-only", "name the primary in {host}")
_LOCKED = ConnectionFault(
    "another session holds a lock on a table for too long", "end that session, then run again", is_permanent=False
)
_CONFLICT = ConnectionFault(
    "another session writes the same rows", "stop other programs that write the tables, then run again",
    is_permanent=False,
)
_FULL = ConnectionFault("its disk is full", "make room there, then run again", is_permanent=False)
_NO_HOST = ConnectionFault("the server rejects all connections from this host", "create the user for this host")
_NO_PASSWORD_LOGIN = ConnectionFault(
    "the user may not log in with a password, or may not now", "correct {user}, unlock it, or set a new {password}"
)

_STATES = (
    ("42501", _NO_PRIVILEGE), ("25006", _READ_ONLY), ("55P03", _LOCKED), ("25P03", LOST), ("40", _CONFLICT),
    ("53100", _FULL), ("53", BUSY), ("57P03", STARTING), ("57", LOST), ("08", LOST), ("28P01", WRONG_PASSWORD),
    ("28", NO_LOGIN), ("3D", NO_DATABASE),
)
"""SQLSTATE, or how it begins, of PostgreSQL's errors."""
_PERMANENT_STATES = ("3F", "42", "0A")
"""SQLSTATE classes of schemas, names and features: only a person can correct them."""
_NUMBERS = {
    1044: _NO_PRIVILEGE, 1142: _NO_PRIVILEGE, 1143: _NO_PRIVILEGE, 1227: _NO_PRIVILEGE, 1370: _NO_PRIVILEGE,
    1410: _NO_PRIVILEGE, 1419: _NO_PRIVILEGE, 1045: WRONG_PASSWORD, 1049: NO_DATABASE, 1130: _NO_HOST,
    1290: _READ_ONLY, 1698: _NO_PASSWORD_LOGIN, 1862: _NO_PASSWORD_LOGIN, 3118: _NO_PASSWORD_LOGIN,
    4151: _NO_PASSWORD_LOGIN, 3159: TLS_REQUIRED, 2026: NO_TLS, 1205: _LOCKED, 1213: _CONFLICT, 1021: _FULL,
    1114: _FULL, 1040: BUSY, 1203: BUSY, 1226: BUSY, 1053: LOST, 1927: LOST, 2003: LOST, 2006: LOST, 2013: LOST,
}
"""Numbers of MySQL's and MariaDB's errors, the client's among them."""
_PERMANENT_NUMBERS = frozenset((1054, 1064, 1091, 1101, 1146))


class ValueRejected(Exception):
    """The target cannot hold a value of the staged rows. Internal: ``output`` names its event.

    ``column`` is the number of the staged column, or its name; None if the target does not name it. ``row`` is the
    number of the staged row, if known.
    """

    def __init__(self, reason: str, column: int | str | None = None, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.column, self.row = reason, column, row


def postgres_fault(state: str) -> ConnectionFault:
    """Return what an error with a SQLSTATE means."""
    known = next((fault for prefix, fault in _STATES if state.startswith(prefix)), None)
    return known or _unnamed(f"SQLSTATE {state}", is_permanent=state.startswith(_PERMANENT_STATES))


def mysql_fault(number: int) -> ConnectionFault:
    """Return what an error with a number means; 0 is one without a number."""
    known = _NUMBERS.get(number) if number else LOST
    return known or _unnamed(f"error {number}", is_permanent=number in _PERMANENT_NUMBERS)


def target_failure(settings: SqlSettings, fault: ConnectionFault) -> DblakeError:
    """Return the error for a failed statement or connection."""
    section = f"outputs.{settings.name}"
    next_step = fault.next_step(
        host=f"{section}.url", user=f"the user in {section}.url", database=f"the database in {section}.url",
        password=f"{section}.password", tls=f"{section}.tls", tls_ca=f"{section}.tls_ca",
    )
    kind = ConsumeError if fault.is_permanent else OutputUnavailable
    return kind(
        f"output {settings.name}: {settings.product} at {settings.host}:{settings.port}: {fault.cause}",
        next_step=next_step,
    )


def _unnamed(code: str, *, is_permanent: bool) -> ConnectionFault:
    return ConnectionFault(
        f"a statement failed ({code})", "see the server's log for the cause, then run again", is_permanent
    )
