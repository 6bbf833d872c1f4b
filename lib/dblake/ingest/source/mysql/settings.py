"""The settings that a connection to one MySQL or MariaDB source needs; ``config`` documents each."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from dblake.base.core.defaults import WATERMARK_SCHEMA
from dblake.base.core.names import TableFilter


@dataclass(frozen=True)
class MysqlSettings:
    """One source's settings. ``user`` is the capture role; the repr leaves its password out.

    ``server_id`` identifies capture among the server's replicas. The default is derived from the name and lies above
    2^31, where servers are rarely numbered by hand.

    >>> MysqlSettings("shop", "mysql", "db", 3306, "dblake", "hunter2", ("shop.*",)).server_id
    2892647586
    """

    name: str
    flavour: Literal["mysql", "mariadb"]
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    patterns: tuple[str, ...]
    tls: Literal["verify", "require", "disable"] = "verify"
    tls_ca: str | None = None
    watermark_schema: str = WATERMARK_SCHEMA
    server_id: int = 0
    replica: tuple[str, int] | None = None
    """Host and port of a replica that chunks are read from."""

    def __post_init__(self) -> None:
        default = 1 << 31 | zlib.crc32(self.name.encode())
        object.__setattr__(self, "server_id", self.server_id or default)

    def at_replica(self) -> Self | None:
        """Return the settings of the replica's connections; None without a replica."""
        return replace(self, host=self.replica[0], port=self.replica[1], replica=None) if self.replica else None

    @cached_property
    def table_filter(self) -> TableFilter:
        """The predicate for captured tables."""
        return TableFilter(list(self.patterns))

    @property
    def product(self) -> str:
        """The product's name, for messages."""
        return {"mysql": "MySQL", "mariadb": "MariaDB"}[self.flavour]
