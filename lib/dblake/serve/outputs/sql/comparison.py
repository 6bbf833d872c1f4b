"""Compare the tables of a SQL output with rows of the lake, and deliver single rows again.

Place: beside ``output``, whose names, types and statements it uses; ``operate.verification`` has the rows. Guarantee:
all tables and the checkpoint are read in one snapshot of the target. The database compares, by its own types and byte
by byte, rows that were loaded as the output loads them. A repair applies rows as of the snapshot's position, under the
lock of the checkpoint, so it replaces nothing that the output has written since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dblake.base.core.errors import ConfigError, ConsumeError
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.model import STATE, Event
from dblake.serve.outputs.sql.errors import ValueRejected
from dblake.serve.outputs.sql.fold import RowChange
from dblake.serve.outputs.sql.output import SqlOutput, number_of, stage
from dblake.serve.outputs.sql.tables import ManagedTable
from dblake.serve.outputs.sql.target import CHECKPOINTS

MAX_LISTED = 5000
"""Wrong rows of one kind that are kept, and delivered again."""
KINDS = ("missing", "extra", "different")
"""How a row can be wrong."""
_SEEN = "_dblake_seen"
_PART = f"{_SEEN}_part"
_PAGE = 5000


@dataclass
class TargetDifferences:
    """Rows of a table that differ, by kind: missing and different ones as the lake has them, extra ones as deletes.

    ``listed`` has the first MAX_LISTED of each kind, ``counts`` all; ``columns`` counts different values by column.
    """

    listed: dict[str, list[Event]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    columns: dict[str, int] = field(default_factory=dict)
    compared: int = 0

    @property
    def count(self) -> int:
        """The number of wrong rows of all kinds."""
        return sum(self.counts.values())

    def add(self, kind: str, row: Event) -> None:
        """Count a wrong row, and list it if there are few so far."""
        self.counts[kind] += 1
        if len(self.listed[kind]) < MAX_LISTED:
            self.listed[kind].append(row)


class SqlCopy(SqlOutput):
    """The target of a SQL output, to be compared with what it should hold."""

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """Connect, and read the target as of one moment within the block; yield the checkpoint that it then holds.

        Raises ConfigError for tables that a snapshot does not cover.
        """
        self._target.connect()
        try:
            self._require_tables()
            self._tables.open()
            unsafe = self._target.find_unsafe_tables([
                CHECKPOINTS, *(one.target.name for source in self._sources for one in self._tables.of_source(source))
            ])
            if unsafe:
                raise ConfigError(
                    f"output {self._name}: the target's table {unsafe[0]} has a storage engine without snapshots, so "
                    "it cannot be compared while it changes",
                    next_step=f"convert it: ALTER TABLE {unsafe[0]} ENGINE = InnoDB",
                )
            self._target.begin_snapshot()
            rows = self._target.query(
                f"SELECT checkpoint FROM {self._target.quote(CHECKPOINTS)} WHERE output = %s", (self._name,)
            )
            yield rows[0][0] if rows else None
        finally:
            self._target.rollback()
            self._target.close()

    def tables_of(self, source: str) -> list[ManagedTable]:
        """Return the tables that the output has written from a source; within ``snapshot``."""
        return self._tables.of_source(source)

    def compare(
        self, managed: ManagedTable, schema: TableSchema, parts: Iterator[list[Event]], at: Position
    ) -> TargetDifferences:
        """Compare a table with all rows that it should have at a position."""
        wrong, own_names = TargetDifferences(), set(managed.target.columns)
        kinds = self._target.find_columns(managed.target.name)
        if not kinds:
            raise ConfigError(
                f"output {self._name}: the target has no table {managed.target.name} any more",
                next_step="remove its row in _dblake_tables, and run subscribe with --from bootstrap",
            )
        self._tables.stage(managed.target)
        self._target.create_keys(_SEEN, managed.target)
        for part in parts:
            wrong.compared += len(part)
            self._compare_part(managed, [_change(row, own_names) for row in part], kinds, wrong)
        (count,) = self._target.query(f"SELECT count(*) FROM {managed.target.table}")[0]
        if count != wrong.compared - wrong.counts["missing"]:
            for key in self._find_extra(managed, kinds):
                wrong.add("extra", _extra(managed, schema, key, at))
            wrong.counts["extra"] = count - wrong.compared + wrong.counts["missing"]
        self._target.execute(f"DROP {self._target.temporary} TABLE {self._target.quote(_SEEN)}")
        return wrong

    def deliver_again(
        self, tables: Mapping[str, Sequence[Event]], source: str, at: Position,
        require_ready: Callable[[str | None], object],
    ) -> None:
        """Apply rows as of a position; those that a newer event has changed since stay.

        ``require_ready`` raises an error for a checkpoint at which this must not be. Raises ConsumeError for a row
        that the target cannot hold.
        """
        self._target.connect()
        try:
            self._tables.open()
            with self._target.transaction():
                # A write of the output waits, or is waited for.
                own_row = f"{self._target.quote(CHECKPOINTS)} WHERE output = %s FOR UPDATE"
                (row,) = self._target.query(f"SELECT checkpoint, bootstraps FROM {own_row}", (self._name,))
                require_ready(row[0])
                seen = number_of(json.loads(row[1]), source)
                for table, rows in tables.items():
                    managed = self._tables.find(source, table)
                    self._tables.stage(managed.target)
                    own_names = set(managed.target.columns)
                    for start in range(0, len(rows), _PAGE):
                        changes = [_change(replace(row, position=at), own_names) for row in rows[start:start + _PAGE]]
                        self._apply_rows(managed, changes, seen)
        except ValueRejected as rejected:
            raise ConsumeError(
                f"output {self._name}: the target cannot hold a row: {rejected.reason}",
                next_step="see the dead letters of the output",
            ) from rejected
        finally:
            self._target.close()

    def _require_tables(self) -> None:
        if not self._target.find_columns(CHECKPOINTS):
            raise ConfigError(
                f"output {self._name}: the target has no table {CHECKPOINTS}, so nothing was delivered there",
                next_step=f"run subscribe --output {self._name} first",
            )

    def _compare_part(
        self, managed: ManagedTable, rows: list[RowChange], kinds: Mapping[str, str], wrong: TargetDifferences
    ) -> None:
        """Compare some rows; rows that the target cannot hold, one by one, differ."""
        columns, shapes, _ = stage(managed, rows)
        columns["lsn"] = list(range(len(rows)))
        self._target.execute(f"SAVEPOINT {_PART}")
        try:
            self._target.load(managed.target, columns)
        except ValueRejected:
            self._target.execute(f"ROLLBACK TO SAVEPOINT {_PART}")
            if len(rows) == 1:
                wrong.add("missing", rows[0].event)
                return
            for half in (rows[:len(rows) // 2], rows[len(rows) // 2:]):
                self._compare_part(managed, half, kinds, wrong)
            return
        table, target = managed.target, self._target
        keys = ", ".join(f"k{number}" for number in range(len(table.key)))
        target.execute(f"INSERT INTO {target.quote(_SEEN)} ({keys}) SELECT {', '.join(table.staged_key)} "
                       f"FROM {table.stage}")
        match = " AND ".join(
            f"t.{target.quote(name)} = s.{staged}" for name, staged in zip(table.key, table.staged_key, strict=True)
        )
        absent = f"t.{target.quote(table.key[0])} IS NULL"
        compared = [name for name in table.columns if name not in table.key]
        differs = [
            f"(s.shape IN ({', '.join(str(n) for n, names in shapes.items() if name in names)}) AND "
            + target.differs(f"t.{target.quote(name)}", f"s.c{table.columns.index(name)}", kinds[name]) + ")"
            for name in compared if any(name in names for names in shapes.values())
        ]
        names = [name for name in compared if any(name in supplied for supplied in shapes.values())]
        for number, is_absent, *flags in target.query(
            f"SELECT s.lsn, {', '.join([absent, *differs])} FROM {table.stage} s LEFT JOIN {table.table} t ON {match} "
            f"WHERE {' OR '.join([absent, *differs])}"
        ):
            if is_absent:
                wrong.add("missing", rows[number].event)
                continue
            wrong.add("different", rows[number].event)
            for name, is_different in zip(names, flags, strict=True):
                if is_different:
                    wrong.columns[name] = wrong.columns.get(name, 0) + 1

    def _find_extra(self, managed: ManagedTable, kinds: Mapping[str, str]) -> list[tuple[str, ...]]:
        """Return the keys of the target that the lake does not have, as texts."""
        table, target = managed.target, self._target
        keys = ", ".join(target.text_of(f"t.{target.quote(name)}", kinds[name]) for name in table.key)
        match = " AND ".join(f"e.k{number} = t.{target.quote(name)}" for number, name in enumerate(table.key))
        same_key = f"SELECT 1 FROM {target.quote(_SEEN)} e WHERE {match}"
        return [tuple(map(str, row)) for row in target.query(
            f"SELECT {keys} FROM {table.table} t WHERE NOT EXISTS ({same_key}) LIMIT {MAX_LISTED}"
        )]


def _change(row: Event, own_names: set[str]) -> RowChange:
    """Return a row as the change that writes it; ``own_names`` are the columns that the target has."""
    if row.op == Op.DELETE:
        return RowChange(row, dict(row.key or {}), begins=True, deleted=True)
    values = {name: text for name, text in (row.after or {}).items() if name in own_names}
    return RowChange(row, values, begins=False, incomplete=len(values) < len(own_names.intersection(row.schema.names)))


def _extra(managed: ManagedTable, schema: TableSchema, key: tuple[str, ...], at: Position) -> Event:
    image = dict(zip(managed.target.key, key, strict=True))
    return Event(
        managed.source, managed.source_table, Op.DELETE, at, image, None, None, None, None, False, STATE,
        schema.schema_id, schema,
    )
