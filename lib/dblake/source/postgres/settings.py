"""What must be known to talk to one PostgreSQL database as the capture role; ``config`` documents each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from dblake.core.defaults import WATERMARK_SCHEMA, replication_name
from dblake.core.names import TableFilter


@dataclass(frozen=True)
class PostgresSettings:
    """One source. ``user`` is the capture role; its password never shows in a repr.

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
    plugin: Literal["pgoutput", "wal2json"] = "pgoutput"
    slot: str = ""
    publication: str = ""
    log_ddl: bool = False

    def __post_init__(self) -> None:
        own = replication_name(self.name)
        object.__setattr__(self, "slot", self.slot or own)
        object.__setattr__(self, "publication", self.publication or own)

    @cached_property
    def wanted(self) -> TableFilter:
        """Which tables are captured."""
        return TableFilter(list(self.patterns))
