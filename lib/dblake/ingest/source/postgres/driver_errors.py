"""Translates psycopg2's errors into dblake's. Texts of failed connections are matched by ``core.connection_faults``.

Guarantee: an error that only a person can correct exits 78, any other is worth a retry and exits 75. The driver's own
text is never passed on, since it may hold values or parts of statements. Texts: libpq and server, English messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from dblake.base.core.connection_faults import LOST, NO_CONNECT, NO_LOGIN, WRONG_PASSWORD, libpq_fault
from dblake.base.core.errors import DblakeError, PrerequisitesNotMet, SourceError, TableLocked, TableUnreadable
from dblake.ingest.source.postgres.settings import PostgresSettings

_PLUGIN_REFUSED = "as an output plugin"
_CONNECT_PRIVILEGE = "CONNECT privilege"
_LOGIN = ("password authentication failed", "no password supplied", "role \"")

_CREATES_ROLE = "run preflight --init, which creates the role"
_PRINTS_GRANT = "run preflight, which prints the GRANT"
_STEPS = {
    WRONG_PASSWORD: f"correct source.password or source.user, or {_CREATES_ROLE}",
    NO_LOGIN: "run preflight --init, or correct source.user",
    NO_CONNECT: _PRINTS_GRANT,
}
"""What corrects a failed connection here, where preflight can help."""
_KEYS = {key: f"source.{key}" for key in ("user", "password", "database", "tls", "tls_ca")}
_OF_ROLE = (
    (_PLUGIN_REFUSED, "the server does not allow pgoutput as an output plugin",
     "run preflight, which prints the statement that allows it"),
    ("permission denied", "the role lacks a privilege", _PRINTS_GRANT),
    ("replication role", "the role lacks REPLICATION", "run preflight, which prints the ALTER ROLE"),
)
"""Errors of statements that only a person can correct: part of the text, cause, next step."""
_OF_SERVER = ("08", "40", "53", "57")
"""Classes of SQLSTATE that concern more than a table: connection, rollback, resources, operator intervention."""
_OF_TABLE = {
    "42501": ("the role may not read it, or row security would hide rows of it", "run preflight, which prints the fix"),
    "XX001": ("a page of it is damaged", "see the server's log; restore the table, then dump it"),
    "XX002": ("an index of it is damaged", "REINDEX the table, then dump it"),
}
"""Errors of one table: cause, next step."""


@contextmanager
def translate_errors(settings: PostgresSettings) -> Iterator[None]:
    """Raise PrerequisitesNotMet or SourceError for a psycopg2 error inside the block; dblake's own errors pass."""
    try:
        yield
    except DblakeError:
        raise
    except psycopg2.errors.LockNotAvailable as error:
        raise SourceError(
            f"source {settings.name}: another session at the source holds a lock for longer than lock_timeout",
            next_step="find that session in pg_locks and pg_stat_activity and end it, then run again",
        ) from error
    except psycopg2.Error as error:
        text, fault = str(error), libpq_fault(str(error))
        if fault is not None and fault.is_permanent:
            next_step = _STEPS.get(fault) or fault.next_step(host="source.host", **_KEYS)
            raise PrerequisitesNotMet(f"source {settings.name}: {fault.cause}", next_step=next_step) from error
        for part, cause, next_step in _OF_ROLE if fault is None else ():
            if part in text:
                raise PrerequisitesNotMet(f"source {settings.name}: {cause}", next_step=next_step) from error
        code = f"an error of the server (SQLSTATE {error.pgcode})" if error.pgcode else LOST.cause
        raise SourceError(
            f"source {settings.name}: PostgreSQL at {settings.host}:{settings.port}: {fault.cause if fault else code}",
            next_step="check that the server is up and reachable at source.host and source.port, then run again",
        ) from error


@contextmanager
def table_errors(table: str) -> Iterator[None]:
    """Raise TableUnreadable or TableLocked for an error of the server that concerns the table read in the block.

    Errors of the connection or of the whole server pass unchanged.
    """
    try:
        yield
    except psycopg2.errors.LockNotAvailable as error:
        raise TableLocked(
            f"table {table}: another session holds a lock on it",
            next_step="find that session in pg_locks and pg_stat_activity and end it, or wait for its end",
        ) from error
    except psycopg2.Error as error:
        if not error.pgcode or error.pgcode.startswith(_OF_SERVER):
            raise
        cause, next_step = _OF_TABLE.get(error.pgcode, ("the server cannot read it", "see the server's log"))
        raise TableUnreadable(f"table {table}: {cause} (SQLSTATE {error.pgcode})", next_step=next_step) from error


@contextmanager
def translate_init_errors(settings: PostgresSettings, admin: str) -> Iterator[None]:
    """Raise PrerequisitesNotMet for a statement of ``--init`` that the server rejects inside the block."""
    try:
        yield
    except psycopg2.errors.InsufficientPrivilege as error:
        if is_plugin_refusal(error):
            raise PrerequisitesNotMet(
                f"source {settings.name}: the server does not allow pgoutput as an output plugin",
                next_step="run preflight, which prints the statement that allows it",
            ) from error
        raise PrerequisitesNotMet(
            f"source {settings.name}: user {admin} lacks a privilege that --init needs",
            next_step="hand the output of preflight --init --dry-run to an administrator of the server",
        ) from error
    except psycopg2.errors.LockNotAvailable as error:
        raise PrerequisitesNotMet(
            f"source {settings.name}: --init waited too long for transactions that began before it",
            next_step="end the oldest transactions of pg_stat_activity (xact_start) and pg_prepared_xacts (prepared); "
                      "then run preflight --init again",
        ) from error
    except psycopg2.Error as error:
        raise PrerequisitesNotMet(
            f"source {settings.name}: --init failed: the server rejected a statement (SQLSTATE {error.pgcode})",
            next_step="run preflight, which names the unmet prerequisites",
        ) from error


def is_plugin_refusal(error: BaseException | None) -> bool:
    """Return True if the server does not allow the library as an output plugin."""
    return _PLUGIN_REFUSED in str(error)


def lacks_connect_privilege(error: SourceError) -> bool:
    """Return True if the role lacks CONNECT on the database."""
    return _CONNECT_PRIVILEGE in str(error.__cause__)


def concerns_login(error: SourceError) -> bool:
    """Return True if the server does not accept the role or its password."""
    return any(part in str(error.__cause__) for part in _LOGIN)
