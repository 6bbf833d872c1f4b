"""The settings of an SQL output; ``config.outputs`` documents each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from dblake.base.core.errors import ConfigError
from dblake.base.core.tls import Tls

_FLAVOURS: dict[str, Literal["postgres", "mysql", "mariadb"]] = {
    "postgresql": "postgres", "postgres": "postgres", "mysql": "mysql", "mariadb": "mariadb",
}


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """One target; the repr leaves the password out."""

    name: str
    flavour: Literal["postgres", "mysql", "mariadb"]
    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    schema: str | None = None
    tls: Tls = "verify"
    tls_ca: str | None = None

    @property
    def product(self) -> str:
        """The name of the database product, for messages."""
        return {"postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}[self.flavour]

    @classmethod
    def parse(
        cls, name: str, url: str, *, password: str = "", schema: str | None = None, tls: Tls = "verify",
        tls_ca: str | None = None,
    ) -> Self:
        """Parse ``postgresql://user@host:port/database``. Raises ConfigError, which never quotes the URL."""
        where = f"outputs.{name}.url"
        try:
            parts = urlsplit(url)
            port = parts.port or 0
        except ValueError:
            raise ConfigError(f"{where}: not a URL", next_step="write postgresql://user@host:5432/database") from None
        flavour = _FLAVOURS.get(parts.scheme)
        database = unquote(parts.path.removeprefix("/"))
        if flavour is None or not parts.hostname or not parts.username or not database or "/" in database:
            raise ConfigError(
                f"{where}: must be postgresql://, mysql:// or mariadb:// with user, host and database",
                next_step="write for instance postgresql://user@host:5432/database",
            )
        if parts.password or parts.query:
            raise ConfigError(
                f"{where}: must hold no password and no parameters",
                next_step="use the keys password, tls and tls_ca of the output",
            )
        user = unquote(parts.username)
        port = port or (5432 if flavour == "postgres" else 3306)
        return cls(name, flavour, parts.hostname, port, user, database, password, schema, tls, tls_ca)
