"""What the targets have in common: names, and the statements that apply a staged set of rows.

Place: base of ``postgres`` and ``mysql``. A staged set is a temporary table with the columns ``c0``, ``c1``, … of the
target's table, ``STAGE_COLUMNS``, ``MOVED_COLUMNS``, the origin's key and one row per key. The guard table beside each
table has one row per key that the output has written, the position of its newest event; deleted keys among them, until
they expire. Guarantee: no statement lets an event overwrite a newer one, or brings a deleted row back, unless
``forget_positions`` was called.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dblake.base.core.errors import ConfigError
from dblake.base.core.position import Position

PREFIX = "_dblake_"
CHECKPOINTS, TABLES, EXPIRED = f"{PREFIX}checkpoints", f"{PREFIX}tables", f"{PREFIX}expired"
#: The columns of a staged set beside the row's own: its position, and how it applies.
STAGE_COLUMNS = (*Position.COLUMNS, "deleted", "incomplete", "shape")
#: The columns of rows whose key changed beside their ``origin_key``: what they take from the row there, and since when.
MOVED_AT = tuple(f"moved_{name}" for name in Position.COLUMNS)
MOVED_COLUMNS = ("moved", *MOVED_AT)

Shapes = Mapping[int, Sequence[str]]
"""A number in the stage → the columns that its rows supply, or take from their origin."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table of the target: quoted names of the table, its guard and its stage; its managed columns and key."""

    name: str
    table: str
    guard: str
    stage: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def staged_key(self) -> list[str]:
        """The stage's columns of the key."""
        return [f"c{self.columns.index(name)}" for name in self.key]

    @property
    def origin_key(self) -> list[str]:
        """The stage's columns of the key whose row has the values that a moved row lacks."""
        return [f"o{number}" for number in range(len(self.key))]

    @property
    def guard_key(self) -> list[str]:
        """The guard's columns of the key."""
        return [f"key_{number}" for number in range(1, len(self.key) + 1)]


class Target(ABC):
    """One connection to a target database. Each subclass has one dialect."""

    max_name: int
    """The longest identifier, in bytes."""
    has_transactional_ddl: bool
    folds_case: bool
    """Whether names that differ in letter case only may be the same."""
    large_text: str
    temporary: str
    """The word before TABLE where a temporary table is dropped."""

    @abstractmethod
    def connect(self) -> None:
        """Connect and pin the session's settings. Raises errors of ``core.errors``."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; do nothing without one."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        """Execute a statement; return the number of rows that it changed."""

    @abstractmethod
    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction at the target."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction at the target."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll the transaction back; ignore a lost connection."""

    @abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction that reads all tables as of one moment."""

    @abstractmethod
    def find_unsafe_tables(self, names: Sequence[str]) -> list[str]:
        """Return the tables that a snapshot does not cover."""

    @abstractmethod
    def create_keys(self, name: str, table: TargetTable) -> None:
        """Create a temporary table, with an index, for keys ``k0``, ``k1``, … of staged rows."""

    @abstractmethod
    def differs(self, left: str, right: str, sql_type: str) -> str:
        """Return the condition that two values of a type differ; NULL equals NULL, and text compares byte by byte."""

    @abstractmethod
    def text_of(self, value: str, sql_type: str) -> str:
        """Return the expression of a value as the text that ``load`` takes."""

    @abstractmethod
    def quote(self, name: str) -> str:
        """Return an identifier, quoted."""

    @abstractmethod
    def column_type(self, source_type: str, key_columns: int) -> str:
        """Return the type of a source type's column; ``key_columns`` is 0 for one outside the primary key."""

    @abstractmethod
    def column_sql(self, sql_type: str) -> str:
        """Return a column's definition for a type: with its collation, if it is text."""

    @abstractmethod
    def find_columns(self, name: str) -> dict[str, str]:
        """Return the columns of a table with their types; empty if there is no such table."""

    @abstractmethod
    def check_key(self, name: str, key: Sequence[str]) -> None:
        """Raise ConfigError if a table that this output did not create cannot be updated by this key."""

    @abstractmethod
    def change_type(self, name: str, column: str, sql_type: str) -> None:
        """Change the type of a column."""

    @abstractmethod
    def create_guard(self, table: TargetTable) -> None:
        """Create the guard table with the key's types."""

    @abstractmethod
    def create_stage(self, table: TargetTable) -> None:
        """Create the temporary table; replace one of that name."""

    @abstractmethod
    def load(self, table: TargetTable, columns: Mapping[str, Sequence[Any]]) -> None:
        """Empty the stage and load rows, given by column."""

    @abstractmethod
    def delete_join(self, victim: str, other: str, condition: str) -> None:
        """Delete the rows ``a`` of a table for which ``condition`` holds with a row ``b`` of another."""

    @abstractmethod
    def update_join(self, table: str, assignments: Mapping[str, str], other: str, condition: str) -> None:
        """Update the rows ``a`` of a table from rows ``b`` of another."""

    @abstractmethod
    def upsert(self, table: TargetTable, columns: Sequence[str], condition: str) -> None:
        """Write some columns of the staged rows ``s`` that meet a condition, over rows of the same key."""

    @abstractmethod
    def upsert_guard(self, table: TargetTable, seen: int) -> None:
        """Write the position of every staged row to the guard."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one transaction; roll it back if the block fails."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def guard_name(self, table: str) -> str:
        """Return the name of a table's guard, shortened by a hash where it would be too long."""
        name = f"{PREFIX}rows_{table}"
        if len(name.encode()) <= self.max_name:
            return name
        return f"{PREFIX}rows_{hashlib.sha256(table.encode()).hexdigest()[:32]}"

    def check_name(self, name: str, where: str) -> None:
        """Raise ConfigError for an identifier that this database cannot hold unchanged."""
        if len(name.encode()) > self.max_name or not name or "\0" in name:
            raise ConfigError(
                f"{where}: the name {name!r} is longer than the target's {self.max_name} bytes",
                next_step="set the output's table to a shorter pattern, or exclude the table",
            )
        if name.startswith(PREFIX):
            raise ConfigError(
                f"{where}: names that begin with {PREFIX} belong to the output's own tables",
                next_step="exclude the table in the output's tables",
            )

    def definitions(self, columns: Mapping[str, str]) -> str:
        """Return column definitions with the types of ``column_type``."""
        return ", ".join(f"{self.quote(name)} {self.column_sql(kind)}" for name, kind in columns.items())

    def apply(self, table: TargetTable, shapes: Shapes, takes: Shapes, floor: Position | None, seen: int) -> None:
        """Apply the staged rows: remove outdated ones, delete, upsert by shape, and note their positions.

        ``shapes`` and ``takes`` are by the stage's columns ``shape`` and ``moved``. No event at or before
        ``floor`` applies: the table was truncated there.
        """
        guarded = self._match("a", table.staged_key, "b", table.guard_key)
        self.update_join(
            table.guard, {"seen": str(seen)}, table.stage, self._match("a", table.guard_key, "b", table.staged_key)
        )
        self.delete_join(table.stage, table.guard, f"{guarded} AND {position('b')} > {position('a')}")
        if floor:
            self.execute(f"DELETE FROM {table.stage} WHERE ({', '.join(Position.COLUMNS)}) <= {literal(floor)}")
        if takes:
            self._take_moved(table, takes)
        keys = [self.quote(name) for name in table.key]
        self.delete_join(table.table, table.stage, f"{self._match('a', keys, 'b', table.staged_key)} AND b.deleted")
        for shape, columns in shapes.items():
            self.upsert(table, columns, f"s.shape = {shape} AND NOT s.deleted")
        self.upsert_guard(table, seen)

    def _take_moved(self, table: TargetTable, takes: Shapes) -> None:
        """Give the staged rows whose key changed the columns that they lack, before any row changes."""
        # The target has a create that is delivered again: then its own row continues it.
        self.update_join(
            table.stage, {old: f"a.{new}" for old, new in zip(table.origin_key, table.staged_key, strict=True)},
            table.guard, f"{self._match('a', table.staged_key, 'b', table.guard_key)} AND a.moved IS NOT NULL "
            f"AND {position('b')} >= ({', '.join(f'a.{name}' for name in MOVED_AT)})",
        )
        keys = [self.quote(name) for name in table.key]
        for number, columns in takes.items():
            values = {f"c{table.columns.index(name)}": f"b.{self.quote(name)}" for name in columns}
            if values:
                self.update_join(
                    table.stage, values, table.table,
                    f"{self._match('a', table.origin_key, 'b', keys)} AND a.moved = {number}",
                )
        self.update_join(
            table.stage, {"incomplete": "CASE WHEN b.incomplete = 0 THEN 0 ELSE 2 END"}, table.guard,
            f"{self._match('a', table.origin_key, 'b', table.guard_key)} AND a.incomplete <> 0 AND NOT b.deleted",
        )

    def truncate(self, table: TargetTable, at: Position) -> None:
        """Delete all rows up to a position; newer ones, which a delivery before this one has written, stay."""
        keys = [self.quote(name) for name in table.key]
        self.delete_join(
            table.table, table.guard,
            f"{self._match('a', keys, 'b', table.guard_key)} AND {position('b')} <= {literal(at)}",
        )
        self.execute(f"DELETE FROM {table.guard} WHERE ({', '.join(Position.COLUMNS)}) <= {literal(at)}")

    def forget_positions(self, table: TargetTable) -> None:
        """Let any event of each key apply, whatever was applied before."""
        self.execute(f"UPDATE {table.guard} SET {', '.join(f'{name} = 0' for name in Position.COLUMNS)}")

    def delete_unseen(self, table: TargetTable, at: Position, seen: int) -> None:
        """Delete the rows that a bootstrap, complete at a position, did not deliver."""
        keys = [self.quote(name) for name in table.key]
        unseen = f"seen < {seen} AND ({', '.join(Position.COLUMNS)}) <= {literal(at)}"
        outdated = f"b.seen < {seen} AND {position('b')} <= {literal(at)}"
        self.delete_join(table.table, table.guard, f"{self._match('a', keys, 'b', table.guard_key)} AND {outdated}")
        self.execute(
            f"UPDATE {table.guard} SET deleted = TRUE, incarnation = {at.incarnation}, lsn = {at.lsn}, seq = {at.seq} "
            f"WHERE {unseen} AND NOT deleted"
        )

    @staticmethod
    def _match(left: str, left_key: Sequence[str], right: str, right_key: Sequence[str]) -> str:
        return " AND ".join(f"{left}.{a} = {right}.{b}" for a, b in zip(left_key, right_key, strict=True))


def position(alias: str) -> str:
    """Return a row's position as a row of SQL, which compares as positions do."""
    return f"({', '.join(f'{alias}.{name}' for name in Position.COLUMNS)})"


def literal(at: Position) -> str:
    """Return a position as a row of SQL."""
    return f"({at.incarnation}, {at.lsn}, {at.seq})"
