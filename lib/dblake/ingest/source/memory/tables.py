"""The parts of a memory database: tables with their rows, slots, and the log's transactions.

Rows are canonical text, as PostgreSQL would send it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from dblake.base.core.schema import TableSchema

Key = tuple[str, ...]
Row = dict[str, str | None]

_NUMBERS = ("smallint", "integer", "bigint", "numeric")


@dataclass(slots=True)
class MemorySlot:
    """A replication slot: the end of the confirmed log, and whether a stream has it open."""

    confirmed: int
    is_taken: bool = False


@dataclass
class MemoryTable:
    """A table with its visible rows. ``defaults`` are the values of columns that an insert omits."""

    oid: int
    schema: TableSchema
    toasted: frozenset[str]
    defaults: Row = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The qualified name."""
        return self.schema.table

    def full(self, row: Row) -> Row:
        """Return the row with all columns, in order."""
        return {name: row.get(name, self.defaults.get(name)) for name in self.schema.names}

    def key_of(self, row: Row) -> Key | None:
        """Return the row's key; None for a table without one."""
        return tuple(row[name] or "" for name in self.schema.primary_key) or None

    def order(self, key: Key) -> tuple[Decimal | str, ...]:
        """Return a sort key: numbers as numbers, other values by code points."""
        types = {c.name: c.type for c in self.schema.columns}
        return tuple(
            Decimal(text) if types[name].startswith(_NUMBERS) else text
            for name, text in zip(self.schema.primary_key, key, strict=True)
        )

    def in_order(self) -> list[tuple[Key, Row]]:
        """Return the rows in key order; in insertion order for a table without a key."""
        if not self.schema.primary_key:
            return list(self.rows.items())
        return sorted(self.rows.items(), key=lambda item: self.order(item[0]))


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """One message of a transaction. ``row`` is the new row of an update, None for anything else."""

    schema: TableSchema
    payload: bytes
    truncate: bool = False
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A committed transaction in the log. ``lsn`` is its commit record's position, ``end`` the position after it."""

    lsn: int
    end: int
    txid: int
    committed_at: int
    changes: tuple[LoggedChange, ...]
