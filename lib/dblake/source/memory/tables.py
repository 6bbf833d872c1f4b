"""What a memory database is made of: tables with their rows, and the log's transactions.

Rows are canonical text, as the source they stand for would send it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from dblake.core.schema import TableSchema

Key = tuple[str, ...]
Row = dict[str, str | None]

_NUMBERS = ("smallint", "integer", "bigint", "numeric")


@dataclass(slots=True)
class Slot:
    """How far a reader of the log has confirmed it, and whether a stream holds the slot."""

    confirmed: int
    taken: bool = False


@dataclass
class Table:
    """A table as it is visible. ``defaults`` are the values of columns that an insert leaves out."""

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
        """The row with all columns, in order."""
        return {name: row.get(name, self.defaults.get(name)) for name in self.schema.names}

    def key_of(self, row: Row) -> Key | None:
        """The row's key; None for a table without one."""
        return tuple(row[name] or "" for name in self.schema.primary_key) or None

    def order(self, key: Key) -> tuple[Decimal | str, ...]:
        """What keys are sorted by: numbers as numbers, all else by code points."""
        types = {c.name: c.type for c in self.schema.columns}
        return tuple(
            Decimal(text) if types[name].startswith(_NUMBERS) else text
            for name, text in zip(self.schema.primary_key, key, strict=True)
        )

    def in_order(self) -> list[tuple[Key, Row]]:
        """The rows by key; without a key, as they came."""
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
    """A committed transaction as the log has it. ``lsn`` is its commit record's place, ``end`` the place after it."""

    lsn: int
    end: int
    txid: int
    committed_at: int
    changes: tuple[LoggedChange, ...]
