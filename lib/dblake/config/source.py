"""The section ``source``: how to reach the captured database, and which of its tables are captured.

Guarantee: the keys fit the kind of database. Connecting to it is left to ``dblake.source``.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dblake.base.core import defaults
from dblake.base.core.names import TableFilter, default_server_object
from dblake.config.file import ConfigFile
from dblake.config.references import PasswordReference, parse_reference
from dblake.config.section import Section, shown_default

SOURCE_NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"
SERVER_ADDRESS = r"^[^\s:]+(:\d{1,5})?$"
SLOT_NAME = r"^[a-z0-9_]{1,63}$"

DEFAULT_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306}
_NAMED_BY_SOURCE = ("slot", "publication")
"""Keys whose null means the name derived from the source's name."""
_POSTGRES_KEYS = {
    "database": "", "slot": "", "publication": "", "log_ddl": False, "primary": None, "watermarks": "table",
}
"""Keys of type postgres alone, each with the value that means "not set"."""


class SourceConfig(Section):
    """The captured database and its tables, and the role that reads them."""

    name: str = Field(
        pattern=SOURCE_NAME,
        description="Names the folder in the warehouse, the lease and the slot; a-z, 0-9, _ and -, at most 40 "
                    "characters.",
    )
    type: Literal["postgres", "mysql", "mariadb"] = Field(description="The kind of database.")
    host: str = Field(min_length=1, description="The server itself, not a pooler or proxy.")
    port: int = Field(
        0, ge=1, le=65535, description="The server's TCP port.",
        json_schema_extra=shown_default("`5432` (PostgreSQL), `3306` (MySQL, MariaDB)"),
    )
    database: str = Field(
        "", description="PostgreSQL only, required there: the captured database.",
        json_schema_extra=shown_default("required for PostgreSQL"),
    )
    user: str = Field(min_length=1, description="The capture role; `preflight --init` can create it.")
    password: PasswordReference = Field(description="${env:NAME} or ${file:PATH}; a literal secret is rejected.")
    tls: Literal["verify", "require", "disable"] = Field(
        "verify",
        description="verify: verify certificate and host name; require: encrypt only; disable: plain text.",
    )
    tls_ca: str | None = Field(
        None, min_length=1,
        description="CA file (PEM) for tls: verify. null: libpq's default (PostgreSQL), the system's CAs (MySQL).",
    )
    tables: tuple[str, ...] = Field(
        strict=False, min_length=1,
        description='Globs on schema.table, case-sensitive; "!" excludes tables; parts in double quotes are literal.',
    )
    replica: str | None = Field(
        None, pattern=SERVER_ADDRESS,
        description="HOST or HOST:PORT of a replica of `host`, from which chunks are read; null: from `host`.",
    )
    primary: str | None = Field(
        None, pattern=SERVER_ADDRESS,
        description="PostgreSQL 16 or newer: HOST or HOST:PORT of the primary of `host`, which is a standby then: its "
                    "log and chunks are read, and watermarks are written to the primary. null: `host` is the primary.",
    )
    watermarks: Literal["table", "messages"] = Field(
        "table",
        description="table: in the table `watermark`. messages: PostgreSQL 14 or newer: as messages in the log, so "
                    "that the source needs no table of dblake's.",
    )
    watermark_schema: str = Field(
        defaults.WATERMARK_SCHEMA, min_length=1,
        description="A dedicated schema (PostgreSQL) or database (MySQL, MariaDB) for the table `watermark`.",
    )
    slot: str = Field(
        "", pattern=SLOT_NAME, description="PostgreSQL only: the replication slot.",
        json_schema_extra=shown_default("`null`: `dblake_<name>`"),
    )
    publication: str = Field(
        "", min_length=1, max_length=63, description="PostgreSQL only: the publication.",
        json_schema_extra=shown_default("`null`: `dblake_<name>`"),
    )
    log_ddl: bool = Field(
        False, description="PostgreSQL 14 or newer: event triggers write a log message for each schema change."
    )
    server_id: int = Field(
        0, ge=0, le=4_294_967_295, description="MySQL and MariaDB only: capture's replica server id.",
        json_schema_extra=shown_default("`0`: derived from the name"),
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_by_type(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        filled = {key: value for key, value in settings.items() if value is not None or key not in _NAMED_BY_SOURCE}
        kind, name = settings.get("type"), settings.get("name")
        if isinstance(kind, str) and kind in DEFAULT_PORTS:
            filled.setdefault("port", DEFAULT_PORTS[kind])
        # A wrong name is one fault, not that of each object named after it.
        if kind == "postgres" and isinstance(name, str) and re.fullmatch(SOURCE_NAME, name):
            filled.setdefault("slot", default_server_object(name))
            filled.setdefault("publication", default_server_object(name))
        return filled

    @field_validator("password", mode="before")
    @classmethod
    def _parse_password(cls, reference: Any, info: ValidationInfo) -> PasswordReference:
        return parse_reference(PasswordReference, reference, "source.password", info)

    @field_validator("tls_ca")
    @classmethod
    def _resolve_tls_ca(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else ConfigFile.of(info.context).beside(path)

    @field_validator("tables")
    @classmethod
    def _validate_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        TableFilter(list(patterns))
        if all(pattern.startswith("!") for pattern in patterns):
            raise ValueError('only excludes tables: at least one pattern without "!" is required')
        return patterns

    @model_validator(mode="after")
    def _validate_for_type(self) -> SourceConfig:
        if self.tls_ca and self.tls != "verify":
            raise ValueError("tls_ca requires tls: verify")
        if self.type != "postgres":
            set_keys = [key for key, unset in _POSTGRES_KEYS.items() if getattr(self, key) != unset]
            if set_keys:
                raise ValueError(f"{' and '.join(set_keys)} {_require(set_keys)} type postgres")
            return self
        if not self.database:
            raise ValueError("database is missing: PostgreSQL is captured one database at a time")
        if self.server_id:
            raise ValueError("server_id requires type mysql or mariadb")
        if self.primary and self.replica:
            raise ValueError("replica is for a host that is the primary: with primary, chunks are read from host")
        return self

    def replica_address(self) -> tuple[str, int] | None:
        """Return host and port of the replica that chunks are read from; None without one."""
        return self._parse_address(self.replica)

    def primary_address(self) -> tuple[str, int] | None:
        """Return host and port of the primary that watermarks are written to; None if that is ``host``."""
        return self._parse_address(self.primary)

    def _parse_address(self, address: str | None) -> tuple[str, int] | None:
        if address is None:
            return None
        host, _, port = address.partition(":")
        return host, int(port or self.port)

    def wants(self) -> TableFilter:
        """Return the filter of captured tables."""
        return TableFilter(list(self.tables))


def _require(keys: list[str]) -> str:
    return "requires" if len(keys) == 1 else "require"
