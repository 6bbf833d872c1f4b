"""The facts about a database that preflight and its ``--init`` judge: server, role, tables, dblake's own objects.

``catalog_queries`` reads them. Judging them is for ``preflight``, acting on them for ``init``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.core.names import qualified
from dblake.core.schema import TableSchema

WATERMARK_TABLE = "watermark"
WATERMARK_ROWS = range(9)
"""Row 0 belongs to the heartbeat, row n to chunk reader n."""


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
class Identity:
    """The replica identity of one table or partition: what the log contains of an updated or deleted row's old version.

    Reference: PostgreSQL documentation, ALTER TABLE, REPLICA IDENTITY.
    """

    schema: str
    name: str
    kind: str
    """PostgreSQL's letter: d(efault), f(ull), i(ndex), n(othing)."""
    has_usable_key: bool
    """False for a deferrable or invalid primary key, which PostgreSQL does not use to identify rows."""
    has_key: bool
    has_index: bool
    index_covers_key: bool
    is_toastable: bool
    """True if a column of the identity can be stored out of line."""
    has_unpublished_column: bool
    """True from PostgreSQL 18 on if the identity contains a generated column: UPDATE and DELETE fail then."""

    @property
    def is_effective(self) -> bool:
        """True if UPDATE and DELETE succeed at the source once the table is published."""
        identifies = {"d": self.has_usable_key, "f": True, "i": self.has_index, "n": False}
        return not self.has_unpublished_column and identifies[self.kind]


@dataclass(frozen=True)
class Table:
    """One captured table. ``identities`` starts with its own, followed by those of its partitions."""

    oid: int
    schema: str
    name: str
    columns: TableSchema
    has_generated_key: bool
    identities: tuple[Identity, ...]
    schema_oid: int
    is_partitioned: bool
    can_use_schema: bool
    can_select: bool
    has_hidden_rows: bool
    """True if row security hides rows from the capture role."""
    generated: list[str]
    """Names of generated columns."""

    @property
    def qualified(self) -> str:
        """``schema.table`` as in messages."""
        return qualified(self.schema, self.name)

    @property
    def is_publishable(self) -> bool:
        """True if publishing the table makes no write fail at the source."""
        return all(i.is_effective for i in self.identities)


@dataclass(frozen=True, slots=True)
class WatermarkTable:
    """The watermark table. ``oid`` is None if only its schema exists; ``rows`` is None if they are not readable."""

    schema_oid: int
    oid: int | None
    is_well_formed: bool
    can_use_schema: bool
    can_read_and_update: bool
    rows: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication and its members by oid. ``narrowed`` are tables with a column list or a row filter."""

    tables: frozenset[int]
    schemas: frozenset[int]
    narrowed: frozenset[int]
    oid: int
    has_all_tables: bool
    has_all_operations: bool
    is_via_root: bool
    has_generated_columns: bool

    def publishes(self, table: int, schema: int) -> bool:
        """Return True if a table's changes are published; both arguments are oids."""
        return self.has_all_tables or table in self.tables or schema in self.schemas


@dataclass(frozen=True, slots=True)
class Slot:
    """The replication slot. ``holder`` is the application name of its reader, if that is visible."""

    plugin: str | None
    kind: str
    database: str | None
    is_temporary: bool
    wal_status: str | None
    active_pid: int | None
    holder: str | None


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """All facts. ``names`` are those of all tables, captured or not; ``publication`` is read for pgoutput only."""

    server: Server
    role: Role | None
    tables: tuple[Table, ...]
    names: tuple[tuple[str, str], ...]
    unlogged: tuple[tuple[str, str], ...]
    watermarks: WatermarkTable | None
    publication: Publication | None
    slot: Slot | None
    has_ddl_triggers: bool
