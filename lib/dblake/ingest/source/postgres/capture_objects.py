"""The objects that capture needs in a database: watermark table, publication and slot, as they are there.

Place: part of ``catalog_facts``. ``init`` creates them.
"""

from __future__ import annotations

from dataclasses import dataclass

WATERMARK_TABLE = "watermark"
WATERMARK_ROWS = range(9)
"""Row 0 belongs to the heartbeat, row n to chunk reader n."""
MESSAGE_PREFIX = "dblake watermark"
"""The prefix of watermarks in log messages, of all lakes of a database: each finds its own by their values."""


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
    is_synced: bool
    """True if a standby copies it from its primary, so that it cannot be read there."""
    loss: str
    """Why it is lost, if it is."""
