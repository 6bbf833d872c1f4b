"""What a table looked like at some position of the log, as the source said it.

A schema is named by its content: the same columns, types and key give the same ``schema_id`` whether they were read
from the log or from the catalogue, today or after a restart. Landing and events refer to schemas by that name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``type`` is the source's own spelling (``numeric(10,2)``); ``key`` its place in the key from 1."""

    name: str
    type: str
    nullable: bool = True
    key: int | None = None


@dataclass(frozen=True)
class TableSchema:
    """The columns of one table, in the order in which the log and the chunks send them.

    ``table`` is the qualified name. A table without a primary key has no column with ``key`` set.
    """

    table: str
    columns: tuple[Column, ...]

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns in key order; empty for a table without a primary key."""
        return tuple(c.name for c in sorted((c for c in self.columns if c.key), key=lambda c: c.key or 0))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns in order."""
        return tuple(c.name for c in self.columns)

    @cached_property
    def schema_id(self) -> str:
        """16 hex digits of the SHA-256 of the content."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One canonical line of JSON; ``from_json`` reads it back."""
        return json.dumps(
            {"table": self.table, "columns": [asdict(c) for c in self.columns]},
            ensure_ascii=False, sort_keys=True, separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> TableSchema:
        """Reads ``to_json``'s line; unknown fields are refused with TypeError."""
        doc = json.loads(text)
        return cls(doc["table"], tuple(Column(**c) for c in doc["columns"]))
