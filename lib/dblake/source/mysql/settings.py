"""What must be known to talk to one MySQL or MariaDB server as the capture role; ``config`` documents each."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from dblake.core.defaults import WATERMARK_SCHEMA
from dblake.core.names import TableFilter


@dataclass(frozen=True)
class MysqlSettings:
    """One source. ``user`` is the capture role; its password never shows in a repr.

    ``server_id`` is by what the server knows the capture among its replicas. The name's own, unless one is given, is
    above 2^31, where nobody numbers servers by hand.

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

    def __post_init__(self) -> None:
        own = 1 << 31 | zlib.crc32(self.name.encode())
        object.__setattr__(self, "server_id", self.server_id or own)

    @cached_property
    def wanted(self) -> TableFilter:
        """Which tables are captured."""
        return TableFilter(list(self.patterns))

    @property
    def product(self) -> str:
        """What the server calls itself."""
        return {"mysql": "MySQL", "mariadb": "MariaDB"}[self.flavour]
