"""Connections to PostgreSQL, every one with the same pinned session.

Text that reaches landing must read the same whichever connection sent it, so whatever changes how PostgreSQL writes a
value is pinned on both the replication and the chunk connections. ``search_path`` is pinned because the names of
types are spelled relative to it, and schemas are identified by that spelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import psycopg2.extensions
from psycopg2.extras import LogicalReplicationConnection

from dblake.core.errors import DblakeError, PrerequisitesNotMet, SourceError
from dblake.source.postgres.settings import PostgresSettings

#: ``require`` means any certificate: libpq would verify it all the same if it found a CA in one of its usual places.
_NO_CA = "/dev/null/none"
_SSLMODE = {"verify": "verify-full", "require": "require", "disable": "disable"}

#: ``lock_timeout``: no wait is unbounded; a longer lock on a table ends the job, which may be started again.
#: ``synchronous_commit=local``: ``on`` may wait for a standby, ``off`` leaves the log unflushed and the stream waiting.
_PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "pg_catalog",
    "synchronous_commit": "local",
    "statement_timeout": "0",
    "lock_timeout": "1h",
    "idle_in_transaction_session_timeout": "0",
}

#: libpq's words for what may heal by itself, though the words after it are those of something that does not.
_PASSING = ("Temporary failure in name resolution", "too many connections for", "not currently accepting connections")
#: libpq's words for what only a person can mend; anything else may heal by itself.
_PERMANENT = (
    ("password authentication failed", "wrong password", "correct source.password"),
    ("no password supplied", "the server wants a password", "set source.password"),
    ("pg_hba.conf", "the server's pg_hba.conf lets no such connection in", "add a line for this user and host to it"),
    ("could not translate host name", "unknown host", "correct source.host"),
    ("certificate verify failed", "the server's certificate cannot be verified",
     "name its CA's file in source.tls_ca, or set source.tls to require"),
    ("root certificate file", "there is no CA file to verify the server with",
     "name one in source.tls_ca, or set source.tls to require"),
    ("server certificate for", "the server's certificate is for another host", "correct source.host"),
    ("does not support SSL", "the server does not speak TLS", "turn it on there, or set source.tls to disable"),
    ("role \"", "the role cannot log in", "run preflight --init, or correct source.user"),
    ("CONNECT privilege", "the role may not connect to the database",
     "run preflight, which names it with its GRANT"),
    ("database \"", "the database cannot be used", "correct source.database"),
    ("as an output plugin", "the server does not let source.plugin be used as an output plugin",
     "run preflight, which names the statement that does"),
    ("permission denied", "the role lacks a privilege", "run preflight, which names it with its GRANT"),
    ("replication role", "the role has no REPLICATION", "run preflight, which names the ALTER ROLE"),
)


def connect(settings: PostgresSettings, *, purpose: str) -> psycopg2.extensions.connection:
    """An autocommit connection for statements. ``purpose`` shows in ``pg_stat_activity``."""
    with explained(settings):
        conn: psycopg2.extensions.connection = psycopg2.connect(**_arguments(settings, purpose))
        conn.autocommit = True
        return conn


@contextmanager
def asking(settings: PostgresSettings, *, purpose: str) -> Iterator[psycopg2.extensions.cursor]:
    """A cursor on a connection that is there for these few statements only.

    They may look into tables that somebody has locked: who asks does not wait long, for the log has to be read.
    """
    conn = connect(settings, purpose=purpose)
    try:
        with explained(settings), conn.cursor() as cur:
            cur.execute("SET lock_timeout = '1s'")
            yield cur
    finally:
        conn.close()


def connect_replication(settings: PostgresSettings) -> psycopg2.extensions.connection:
    """A logical replication connection; its cursors speak the streaming protocol."""
    with explained(settings):
        conn: psycopg2.extensions.connection = psycopg2.connect(
            **_arguments(settings, "log"), connection_factory=LogicalReplicationConnection
        )
        return conn


def _arguments(settings: PostgresSettings, purpose: str) -> dict[str, object]:
    return {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.database,
        "user": settings.user,
        "password": settings.password,
        "sslmode": _SSLMODE[settings.tls],
        "sslrootcert": settings.tls_ca if settings.tls == "verify" else _NO_CA,
        "gssencmode": "disable",
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "tcp_user_timeout": 60_000,
        "client_encoding": "UTF8",
        "application_name": f"dblake {settings.name} {purpose}",
        "options": " ".join(f"-c {name}={value}" for name, value in _PINNED.items()),
    }


@contextmanager
def explained(settings: PostgresSettings) -> Iterator[None]:
    """Turns the driver's errors into ours: what a person must mend exits 78, all else is worth another try.

    The driver's own text is not passed on, since it may hold values or parts of statements.
    """
    try:
        yield
    except DblakeError:
        raise
    except psycopg2.errors.LockNotAvailable as error:
        raise SourceError(
            f"source {settings.name}: another session at the source holds a lock for too long",
            next_step="see pg_locks and pg_stat_activity for that session; then run again",
        ) from error
    except psycopg2.Error as error:
        text = str(error)
        passing = any(words in text for words in _PASSING)
        for words, meaning, mend in _PERMANENT:
            if words in text and not passing:
                raise PrerequisitesNotMet(f"source {settings.name}: {meaning}", next_step=mend) from error
        code = f" (SQLSTATE {error.pgcode})" if error.pgcode else ""
        raise SourceError(
            f"source {settings.name}: the connection to PostgreSQL failed: {type(error).__name__}{code}",
            next_step="see that the server is up and reachable at source.host and source.port; then run again",
        ) from error
