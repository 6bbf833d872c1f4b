"""The facts about a server that preflight and its ``--init`` evaluate: server, role, tables, dblake's own table.

Reading them is left to ``catalog_queries``, evaluating them to ``preflight`` and ``init``. Privileges are always those
of the capture role, whichever user is connected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dblake.ingest.source.mysql.catalog import CatalogTable
from dblake.ingest.source.mysql.connection import ServerVersion
from dblake.ingest.source.mysql.grants import Grants
from dblake.ingest.source.mysql.log_retention import Retention
from dblake.ingest.source.mysql.statements import Account


@dataclass(frozen=True)
class Server:
    """The server and its settings.

    ``logged_only`` (binlog-do-db) are the only schemas in its log unless empty, ``not_logged`` those left out of it.
    """

    version: ServerVersion
    variables: Mapping[str, str]
    is_replica: bool
    logged_only: frozenset[str] = frozenset()
    not_logged: frozenset[str] = frozenset()
    retention: Retention = field(default_factory=Retention)

    def logs(self, schema: str) -> bool:
        """Return True if changes of a schema's tables are in the log."""
        return schema not in self.not_logged and (not self.logged_only or schema in self.logged_only)

    def is_on(self, *names: str) -> bool:
        """Return True if the first of the settings that this server has is on."""
        return next((self.variables[n] in ("ON", "1") for n in names if n in self.variables), False)


@dataclass(frozen=True)
class Role:
    """The capture role's account and its privileges."""

    account: Account
    grants: Grants


@dataclass(frozen=True)
class Watermarks:
    """The watermark table; ``rows`` is None if they may not be read."""

    is_well_formed: bool
    rows: frozenset[int] | None


@dataclass(frozen=True)
class CatalogFacts:
    """All facts. ``names`` are those of all visible tables; ``cascades`` has the names of foreign keys by table.

    ``schemas`` are those of which the patterns take every table, those that are created later included.
    """

    server: Server
    role: Role | None
    tables: tuple[CatalogTable, ...]
    names: tuple[tuple[str, str], ...]
    cascades: Mapping[tuple[str, str], tuple[str, ...]]
    watermarks: Watermarks | None
    schemas: tuple[str, ...] = ()

    @property
    def partly_granted(self) -> list[str]:
        """The ``schemas`` in which the capture role may not read a table that is created later."""
        return [s for s in self.schemas if self.role is None or not self.role.grants.has("SELECT", s)]

    def can_select(self, table: CatalogTable) -> bool:
        """Return True if the capture role may read the table."""
        return self.role is not None and self.role.grants.has("SELECT", table.schema_name, table.table_name)
