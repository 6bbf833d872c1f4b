"""The section ``iceberg``: the catalog in which state tables are published as Iceberg tables.

Place: a section of ``models``. Guarantee: no secret is in the configuration. Connecting is left to ``serve.iceberg``.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from dblake.base.core.secret import SECRET_KEY, Reference
from dblake.config.file import ConfigFile
from dblake.config.monitoring import AGE, seconds_of
from dblake.config.references import parse_reference
from dblake.config.section import Section

NAMESPACE = r"^[a-z][a-z0-9_]*$"
_URL_WITH_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_SQLITE = "sqlite:///"


class IcebergConfig(Section):
    """Iceberg tables with the files of state tables: docs/iceberg.md."""

    catalog: dict[str, str | Reference] = Field(
        default_factory=dict,
        description="The catalog, as pyiceberg's properties: `type` sql, rest, glue or hive, `uri`, `warehouse`, …; "
                    "secrets are ${env:NAME} or ${file:PATH}. {}: nothing is published.",
    )
    namespace: str | None = Field(
        None, pattern=NAMESPACE,
        description="The tables' namespace, which only this source uses; null: the source's name, with _ for -.",
    )
    every: str = Field(
        "60s", pattern=AGE,
        description="Least time between two snapshots of a continuous job: a number and s, m, h or d. Each snapshot "
                    "has metadata of its own, so a longer time makes fewer files.",
    )
    events: bool = Field(False, description="Also publish the table of events.")

    @property
    def every_seconds(self) -> float:
        """Return ``every`` in seconds."""
        return seconds_of(self.every)

    def read_catalog(self) -> dict[str, str]:
        """Return the properties of the catalog. Raises ConfigError if a reference cannot be read."""
        return {key: value.resolve() if isinstance(value, Reference) else value for key, value in self.catalog.items()}

    @field_validator("catalog", mode="before")
    @classmethod
    def _parse_catalog(cls, catalog: Any, info: ValidationInfo) -> Any:
        if not isinstance(catalog, dict):
            return catalog
        return {key: _property(str(key), value, info) for key, value in catalog.items()}


def _property(key: str, value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"{key}: must be text, in quotes")
    is_secret = SECRET_KEY.search(key) and value not in ("true", "false")
    if value.startswith("${") or is_secret or _URL_WITH_PASSWORD.search(value):
        return parse_reference(Reference, value, f"iceberg.catalog.{key}", info)
    file = ConfigFile.of(info.context)
    if key == "uri" and value.startswith(_SQLITE):
        return _SQLITE + file.beside(value.removeprefix(_SQLITE))
    if key == "warehouse" and value.startswith((".", "/")):
        return f"file://{file.beside(value)}"
    return value
