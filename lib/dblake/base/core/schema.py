"""A table's schema at some position of the log, as the source describes it.

Guarantee: a schema is identified by its content. Equal columns, types and key give equal ``schema_id`` values, whether
read from the log or from the catalog, before or after a restart. Landing and events refer to schemas by that value.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``type`` is in the source's notation (``numeric(10,2)``); ``key`` is its place in the key, from 1."""

    name: str
    type: str
    nullable: bool = True
    key: int | None = None


@dataclass(frozen=True)
class TableSchema:
    """The columns of one table, in the order in which the log and the chunks send them.

    ``table`` is the qualified name. In a table without a primary key no column has ``key`` set.
    """

    table: str
    columns: tuple[Column, ...]

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the key columns in key order; empty for a table without a primary key."""
        return tuple(c.name for c in sorted((c for c in self.columns if c.key), key=lambda c: c.key or 0))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all columns in order."""
        return tuple(c.name for c in self.columns)

    @cached_property
    def schema_id(self) -> str:
        """16 hex digits of the SHA-256 of the content."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return the schema as one canonical line of JSON."""
        return json.dumps(
            {"table": self.table, "columns": [asdict(c) for c in self.columns]},
            ensure_ascii=False, sort_keys=True, separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> TableSchema:
        """Parse the line that ``to_json`` returns. Raises TypeError for unknown fields."""
        doc = json.loads(text)
        return cls(doc["table"], tuple(Column(**c) for c in doc["columns"]))
