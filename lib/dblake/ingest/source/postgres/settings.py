"""The connection and replication settings of one PostgreSQL source; ``config`` documents each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from dblake.base.core.defaults import WATERMARK_SCHEMA
from dblake.base.core.names import TableFilter, default_server_object

PLUGIN = "pgoutput"
"""The output plugin: part of every server since PostgreSQL 10, and the one that managed servers allow."""


@dataclass(frozen=True)
class PostgresSettings:
    """One source. ``user`` is the capture role; the repr never shows its password.

    ``slot`` and ``publication`` default to ``dblake_`` and the source's name.

    >>> PostgresSettings("shop", "db", 5432, "shop", "dblake", "hunter2", ("public.*",)).slot
    'dblake_shop'
    """

    name: str
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    patterns: tuple[str, ...]
    tls: Literal["verify", "require", "disable"] = "verify"
    tls_ca: str | None = None
    watermark_schema: str = WATERMARK_SCHEMA
    slot: str = ""
    publication: str = ""
    log_ddl: bool = False
    replica: tuple[str, int] | None = None
    """Host and port of a replica that chunks are read from."""
    primary: tuple[str, int] | None = None
    """Host and port of the primary, if ``host`` is a standby whose log is read."""
    watermarks: Literal["table", "messages"] = "table"

    def __post_init__(self) -> None:
        default = default_server_object(self.name)
        object.__setattr__(self, "slot", self.slot or default)
        object.__setattr__(self, "publication", self.publication or default)

    def at_replica(self) -> Self | None:
        """Return the settings of the replica's connections; None without a replica."""
        return replace(self, host=self.replica[0], port=self.replica[1], replica=None) if self.replica else None

    def at_primary(self) -> Self:
        """Return the settings of the server that accepts writes: the primary, with a standby of ours as its replica."""
        if self.primary is None:
            return self
        return replace(
            self, host=self.primary[0], port=self.primary[1], primary=None, replica=(self.host, self.port)
        )

    @property
    def has_watermark_table(self) -> bool:
        """True if watermarks are rows of the watermark table."""
        return self.watermarks == "table"

    @cached_property
    def table_filter(self) -> TableFilter:
        """The predicate for captured tables."""
        return TableFilter(list(self.patterns))
