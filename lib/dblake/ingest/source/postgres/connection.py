"""Opens connections to PostgreSQL, every one with the same pinned session settings.

Guarantee: text that reaches landing reads the same whichever connection sent it. Every setting that changes how
PostgreSQL writes a value is pinned on replication and chunk connections alike. ``search_path`` is pinned because type
names depend on it, and schemas are identified by those names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import psycopg2.extensions
from psycopg2.extras import LogicalReplicationConnection

from dblake.ingest.source.postgres.driver_errors import translate_errors
from dblake.ingest.source.postgres.settings import PostgresSettings

_SSLMODE = {"verify": "verify-full", "require": "require", "disable": "disable"}
_NO_CA_FILE = "/dev/null/none"
"""``require`` accepts any certificate; libpq would verify it if it found a CA file at one of its default paths."""

_PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO,YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "pg_catalog",
    # ``on`` may wait for a standby; ``off`` leaves the log unflushed, so that the stream waits for the WAL writer.
    "synchronous_commit": "local",
    "statement_timeout": "0",
    # No wait for a lock is long: what needs it is put off, and the log goes on.
    "lock_timeout": "3s",
    # A policy that would hide rows from a chunk is an error: the end of a dump deletes rows that no chunk returned.
    "row_security": "off",
    "idle_in_transaction_session_timeout": "0",
}


def connect(settings: PostgresSettings, *, purpose: str) -> psycopg2.extensions.connection:
    """Open an autocommit connection for statements. ``purpose`` shows in ``pg_stat_activity``.

    Raises PrerequisitesNotMet or SourceError.
    """
    with translate_errors(settings):
        conn: psycopg2.extensions.connection = psycopg2.connect(**_arguments(settings, purpose))
        conn.autocommit = True
        return conn


@contextmanager
def open_cursor(settings: PostgresSettings, *, purpose: str) -> Iterator[psycopg2.extensions.cursor]:
    """Open a cursor on a connection of its own, for the few statements of the block.

    ``lock_timeout`` is one second: the statements may read locked tables, and the log must not wait for them.
    """
    conn = connect(settings, purpose=purpose)
    try:
        with translate_errors(settings), conn.cursor() as cur:
            cur.execute("SET lock_timeout = '1s'")
            yield cur
    finally:
        conn.close()


def connect_replication(settings: PostgresSettings) -> psycopg2.extensions.connection:
    """Open a logical replication connection, whose cursors use the streaming protocol.

    Raises PrerequisitesNotMet or SourceError.
    """
    with translate_errors(settings):
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
        "sslrootcert": settings.tls_ca if settings.tls == "verify" else _NO_CA_FILE,
        "gssencmode": "disable",
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "tcp_user_timeout": 60_000,
        "client_encoding": "UTF8",
        "application_name": f"dblake {settings.name} {purpose}",
        "options": " ".join(f"-c {name}={value}" for name, value in _PINNED.items()),
    }
