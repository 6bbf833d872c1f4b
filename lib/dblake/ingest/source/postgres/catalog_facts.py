"""The facts about a database that preflight and its ``--init`` judge: server, role, tables, dblake's own objects.

``catalog_queries`` reads them. Judging them is for ``preflight``, acting on them for ``init``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.ingest.source.postgres.capture_objects import Publication, Slot, WatermarkTable
from dblake.ingest.source.postgres.table_facts import Table
from dblake.ingest.source.provider import Provider


@dataclass(frozen=True, slots=True)
class Server:
    """The server and its settings."""

    version: int
    version_text: str
    database: str
    is_standby: bool
    wal_level: str
    max_slots: int
    slots: int
    max_wal_senders: int
    wal_senders: int
    encoding: str
    slot_keep_size: str
    slot_idle_timeout: str
    plugins: str | None
    """``output_plugin_libraries``; None if the server has no such setting or shows it to superusers only."""
    provider: Provider | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """The capture role."""

    oid: int
    can_login: bool
    can_replicate: bool
    is_superuser: bool
    bypasses_row_security: bool
    can_connect: bool


@dataclass(frozen=True, slots=True)
class WholeSchema:
    """A schema whose tables the patterns take, later ones included."""

    oid: int
    name: str
    can_use: bool
    owners: tuple[str, ...]
    """Owners of its tables, whose new tables the capture role may not read."""
    alterable: tuple[str, ...]
    """Those of the owners whose default privileges the connected role may alter."""


@dataclass(frozen=True, slots=True)
class ChangedCollation:
    """A collation of a table's primary key whose library has another version than the one recorded."""

    table: int
    is_default: bool
    """True for the database's own collation."""
    schema: str
    name: str
    recorded: str
    actual: str


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """All facts. ``names`` are those of all tables, captured or not; ``publication`` is read for pgoutput only.

    ``is_superuser`` is about the connected role, an administrator or the capture role.
    """

    server: Server
    role: Role | None
    is_superuser: bool
    tables: tuple[Table, ...]
    collations: tuple[ChangedCollation, ...]
    schemas: tuple[WholeSchema, ...]
    names: tuple[tuple[str, str], ...]
    unlogged: tuple[tuple[str, str], ...]
    watermarks: WatermarkTable | None
    publication: Publication | None
    slot: Slot | None
    has_ddl_triggers: bool
    may_emit_messages: bool
    """True if the capture role may call ``pg_logical_emit_message``."""
