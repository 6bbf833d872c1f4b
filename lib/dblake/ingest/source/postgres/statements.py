"""Builds the statements that prepare a PostgreSQL database for capture, printed by preflight and run by ``--init``.

Guarantee: every name is quoted. Selecting the statements that a database needs is for ``preflight`` and ``init``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg2 import sql

from dblake.ingest.source.postgres.capture_objects import WATERMARK_ROWS, WATERMARK_TABLE
from dblake.ingest.source.postgres.settings import PLUGIN, PostgresSettings
from dblake.ingest.source.postgres.table_facts import Identity, Table
from dblake.ingest.source.provider import Provider

_FLUSHED_MESSAGES_VERSION = 170000
"""The first version whose messages have the argument ``flush``."""
_FAILOVER_SLOTS_VERSION = 170000
"""The first version that synchronizes logical slots to standbys."""


def create_role(
    settings: PostgresSettings, password: sql.Composable, provider: Provider | None = None
) -> sql.Composable:
    """Create the capture role: no superuser, only LOGIN and REPLICATION, or its replacement on Amazon RDS."""
    is_granted = provider is not None and provider.grants_replication
    form = "CREATE ROLE {0} LOGIN PASSWORD {1}; GRANT rds_replication TO {0}" if is_granted else (
        "CREATE ROLE {0} LOGIN REPLICATION PASSWORD {1}"
    )
    return sql.SQL(form).format(sql.Identifier(settings.user), password)


def grant_replication(settings: PostgresSettings, provider: Provider | None) -> sql.Composable:
    """Give the capture role LOGIN and the right to read the log."""
    if provider and provider.grants_replication:
        return sql.SQL("ALTER ROLE {0} LOGIN; GRANT rds_replication TO {0}").format(sql.Identifier(settings.user))
    return alter_role(settings, "LOGIN REPLICATION")


def alter_role(settings: PostgresSettings, attribute: str) -> sql.Composable:
    """Set a role attribute such as REPLICATION or NOSUPERUSER."""
    return sql.SQL("ALTER ROLE {} " + attribute).format(sql.Identifier(settings.user))


def grant_connect(settings: PostgresSettings) -> sql.Composable:
    """Grant the capture role CONNECT on the database."""
    return _grant("CONNECT", sql.SQL("DATABASE {}").format(sql.Identifier(settings.database)), settings)


def grant_connect_text(settings: PostgresSettings) -> str:
    """Return the same as text, for a caller that has no connection to quote names with."""
    database, user = ('"' + name.replace('"', '""') + '"' for name in (settings.database, settings.user))
    return f"GRANT CONNECT ON DATABASE {database} TO {user}"


def grant_usage(settings: PostgresSettings, schemas: Iterable[str]) -> sql.Composable:
    """Grant the capture role USAGE on the schemas."""
    return _grant("USAGE", sql.SQL("SCHEMA {}").format(_identifiers(sorted(set(schemas)))), settings)


def grant_select(settings: PostgresSettings, tables: Sequence[Table]) -> sql.Composable:
    """Grant the capture role SELECT on the tables, for chunks."""
    return _grant("SELECT", sql.SQL("TABLE {}").format(_names(tables)), settings)


def create_watermark_schema(settings: PostgresSettings) -> sql.Composable:
    """Create the schema of the watermark table."""
    return sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(settings.watermark_schema))


def create_watermark_table(settings: PostgresSettings) -> sql.Composable:
    """Create the watermark table."""
    return sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, value varchar(36))").format(watermark_table(settings))


def move_watermark_table(settings: PostgresSettings) -> sql.Composable:
    """Rename another table that has the watermark table's name."""
    return sql.SQL("ALTER TABLE {} RENAME TO {}").format(
        watermark_table(settings), sql.Identifier(f"{WATERMARK_TABLE}_before")
    )


def insert_watermark_rows(settings: PostgresSettings) -> sql.Composable:
    """Insert the watermark table's rows; existing ones are kept."""
    return sql.SQL(
        "INSERT INTO {} (id, value) SELECT id, '' FROM generate_series({}, {}) AS id ON CONFLICT DO NOTHING"
    ).format(watermark_table(settings), sql.Literal(WATERMARK_ROWS[0]), sql.Literal(WATERMARK_ROWS[-1]))


def grant_watermarks(settings: PostgresSettings) -> sql.Composable:
    """Grant the capture role SELECT and UPDATE on the watermark table."""
    return _grant("SELECT, UPDATE", sql.SQL("TABLE {}").format(watermark_table(settings)), settings)


def grant_messages(settings: PostgresSettings, version: int) -> sql.Composable:
    """Grant the capture role to write messages into the log."""
    flush = ", boolean" if version >= _FLUSHED_MESSAGES_VERSION else ""
    function = f"FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text{flush})"
    return _grant("EXECUTE", sql.SQL(function), settings)


def grant_future_select(settings: PostgresSettings, schema: str, owners: Sequence[str]) -> sql.Composable:
    """Grant the capture role SELECT on the tables that these roles create in a schema from now on."""
    return sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA {} GRANT SELECT ON TABLES TO {}").format(
        _identifiers(owners), sql.Identifier(schema), sql.Identifier(settings.user)
    )


def create_publication(
    settings: PostgresSettings, tables: Sequence[Table], schemas: Sequence[str] = ()
) -> sql.Composable:
    """Create the publication of the tables, the watermark table, and all tables of the schemas."""
    more = [watermark_table(settings)] if settings.has_watermark_table else []
    members = [sql.SQL("TABLE {}").format(_names(tables, *more))] if tables or more else []
    members += [sql.SQL("TABLES IN SCHEMA {}").format(_identifiers(schemas))] if schemas else []
    whole = sql.SQL(" FOR {}").format(sql.SQL(", ").join(members)) if members else sql.SQL("")
    return sql.SQL("CREATE PUBLICATION {}{} WITH (publish_via_partition_root = true)").format(
        sql.Identifier(settings.publication), whole
    )


def add_schemas(settings: PostgresSettings, schemas: Sequence[str]) -> sql.Composable:
    """Publish all tables of the schemas, those that are created later included."""
    return _alter_publication(settings, "ADD TABLES IN SCHEMA {}", _identifiers(schemas))


def add_tables(settings: PostgresSettings, tables: Sequence[Table], *, watermarks: bool = False) -> sql.Composable:
    """Add tables, and optionally the watermark table, to the publication."""
    more = [watermark_table(settings)] if watermarks else []
    return _alter_publication(settings, "ADD TABLE {}", _names(tables, *more))


def drop_tables(settings: PostgresSettings, tables: Sequence[Table]) -> sql.Composable:
    """Drop tables from the publication."""
    return _alter_publication(settings, "DROP TABLE {}", _names(tables))


def set_publication(settings: PostgresSettings, options: str) -> sql.Composable:
    """Set options of the publication."""
    return _alter_publication(settings, f"SET ({options})")


def create_slot(settings: PostgresSettings, version: int) -> sql.Composable:
    """Create the slot, with failover where the server supports it. Requires a transaction that has written nothing.

    A standby's own slot cannot be synchronized further.
    """
    failover = ", failover => true" if version >= _FAILOVER_SLOTS_VERSION and settings.primary is None else ""
    return sql.SQL("SELECT pg_create_logical_replication_slot({}, {}" + failover + ")").format(
        sql.Literal(settings.slot), sql.Literal(PLUGIN)
    )


def set_identity(table: Identity, kind: str) -> sql.Composable:
    """Set a table's replica identity: DEFAULT or FULL."""
    return sql.SQL("ALTER TABLE {} REPLICA IDENTITY " + kind).format(sql.Identifier(table.schema, table.name))


def replace_key(table: Table, name: str, definition: str) -> sql.Composable:
    """Replace a table's primary key by an immediate one; ``definition`` is SQL of the server."""
    return sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}, ADD CONSTRAINT {} {}").format(
        sql.Identifier(table.schema, table.name), sql.Identifier(name), sql.Identifier(name), sql.SQL(definition)
    )


def watermark_table(settings: PostgresSettings) -> sql.Identifier:
    """Return the quoted name of the watermark table."""
    return sql.Identifier(settings.watermark_schema, WATERMARK_TABLE)


def script(statements: Iterable[sql.Composable]) -> sql.Composable:
    """Join statements to one text, a line each."""
    return sql.SQL("\n").join(sql.SQL("{};").format(s) for s in statements)


def _grant(privileges: str, what: sql.Composable, settings: PostgresSettings) -> sql.Composable:
    return sql.SQL("GRANT " + privileges + " ON {} TO {}").format(what, sql.Identifier(settings.user))


def _alter_publication(settings: PostgresSettings, action: str, *names: sql.Composable) -> sql.Composable:
    return sql.SQL("ALTER PUBLICATION {} " + action).format(sql.Identifier(settings.publication), *names)


def _names(tables: Sequence[Table], *more: sql.Composable) -> sql.Composable:
    return sql.SQL(", ").join([*(sql.Identifier(t.schema, t.name) for t in tables), *more])


def _identifiers(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))
