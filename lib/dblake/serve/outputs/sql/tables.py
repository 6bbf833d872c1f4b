"""Create the target's tables, and follow schema changes of the source.

Place: before each write of ``output``. ``_dblake_tables`` has one row per table: its source table, the source types of
the columns, and the newest truncate. Guarantee: repeating a step after a failure changes nothing twice. The rules:

- A new column is added. A column dropped at the source stays, and keeps its last values.
- A wider type is taken over; for a narrower one the wider stays. Any other change of type or key is rejected by name.
- A table that exists already is adopted if it has a unique key of the same columns; its own further columns stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from dblake.base.core.errors import ConfigError, IncompatibleSchemaChange, Unsupported
from dblake.base.core.failpoints import failpoint
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.outputs.sql.target import TABLES, Target, TargetTable
from dblake.serve.outputs.sql.types import widens

_RESTART = "drop the target's table and its row in _dblake_tables, and subscribe from bootstrap"


@dataclass(frozen=True, slots=True)
class ManagedTable:
    """A row of ``_dblake_tables``: source types by column, the key, and where the table was truncated last."""

    target: TargetTable
    source: str
    source_table: str
    types: dict[str, str]
    floor: Position | None = None
    schema_ids: frozenset[str] = frozenset()
    """Schema versions that the table is known to hold."""


class TargetTables:
    """The tables of one output. ``pattern`` makes a target's table name from {source}, {schema} and {table}."""

    def __init__(self, target: Target, output: str, pattern: str) -> None:
        self._target = target
        self._output = output
        self._pattern = pattern
        self._tables: dict[tuple[str, str], ManagedTable] = {}
        self._stage_numbers: dict[str, int] = {}
        self._staged: set[str] = set()

    def open(self) -> None:
        """Create the output's own tables if they are missing, and read the managed tables."""
        text = self._target.large_text
        self._target.execute(
            f"CREATE TABLE IF NOT EXISTS {self._target.quote(TABLES)} (name varchar(255) NOT NULL PRIMARY KEY, "
            f"output varchar(64) NOT NULL, source varchar(64) NOT NULL, source_table {text} NOT NULL, "
            f"columns_json {text} NOT NULL, key_json {text} NOT NULL, incarnation bigint, lsn bigint, seq bigint)"
        )
        rows = self._target.query(
            "SELECT name, source, source_table, columns_json, key_json, incarnation, lsn, seq FROM "
            f"{self._target.quote(TABLES)} WHERE output = %s", (self._output,),
        )
        self._tables = {}
        for name, source, source_table, columns, key, *floor in rows:
            types = json.loads(columns)
            target = self._describe(name, tuple(types), tuple(json.loads(key)))
            managed = ManagedTable(target, source, source_table, types, Position(*floor) if floor[0] else None)
            self._tables[source, source_table] = managed
        self._staged.clear()

    def of_source(self, source: str) -> list[ManagedTable]:
        """Return all tables that the output has written from a source."""
        return [table for (of, _), table in self._tables.items() if of == source]

    def find(self, source: str, source_table: str) -> ManagedTable:
        """Return a table that ``follow`` has prepared."""
        return self._tables[source, source_table]

    def follow(self, source: str, schemas: list[TableSchema]) -> None:
        """Make a table hold rows of all schema versions, given in order."""
        for schema in schemas:
            managed = self._tables.get((source, schema.table))
            if managed is None:
                managed = self._create(source, schema)
            elif schema.schema_id not in managed.schema_ids:
                managed = self._alter(managed, schema)
            self.stage(managed.target)
            known = managed.schema_ids | {schema.schema_id}
            self._tables[source, schema.table] = replace(managed, schema_ids=known)

    def set_floor(self, managed: ManagedTable, at: Position | None) -> ManagedTable:
        """Record a truncate, or that there was none, in the transaction that carries it out."""
        self._target.execute(
            f"UPDATE {self._target.quote(TABLES)} SET incarnation = %s, lsn = %s, seq = %s WHERE name = %s",
            (at and at.incarnation, at and at.lsn, at and at.seq, managed.target.name),
        )
        changed = replace(managed, floor=at)
        self._tables[managed.source, managed.source_table] = changed
        return changed

    def stage(self, target: TargetTable) -> None:
        """Create the stage of a table at its first use on this connection."""
        if target.name not in self._staged:
            self._target.create_stage(target)
            self._staged.add(target.name)

    def _create(self, source: str, schema: TableSchema) -> ManagedTable:
        if not schema.primary_key:
            raise Unsupported(
                f"output {self._output}: table {schema.table} has no primary key, so its rows cannot be updated",
                next_step="exclude the table in the output's tables, or add a primary key at the source",
            )
        name = self._target_name(source, schema.table)
        self._check_columns(schema)
        key_count = len(schema.primary_key)
        types = {column.name: column.type for column in schema.columns}
        target = self._describe(name, schema.names, schema.primary_key)
        existing = self._target.find_columns(name)
        if existing:
            self._target.check_key(name, schema.primary_key)
            for column in schema.columns:
                if column.name not in existing:
                    self._add_column(name, column.name, column.type)
        else:
            columns = {
                column.name: self._target.column_type(column.type, key_count if column.key else 0)
                for column in schema.columns
            }
            keys = ", ".join(self._target.quote(key) for key in schema.primary_key)
            self._target.execute(
                f"CREATE TABLE {target.table} ({self._target.definitions(columns)}, PRIMARY KEY ({keys}))"
            )
            failpoint("outputs.sql.table_created")
        if not self._target.find_columns(self._target.guard_name(name)):
            self._target.create_guard(target)
            failpoint("outputs.sql.guard_created")
        self._target.execute(
            f"INSERT INTO {self._target.quote(TABLES)} (name, output, source, source_table, columns_json, key_json) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            (name, self._output, source, schema.table, json.dumps(types), json.dumps(schema.primary_key)),
        )
        return ManagedTable(target, source, schema.table, types)

    def _alter(self, managed: ManagedTable, schema: TableSchema) -> ManagedTable:
        if schema.primary_key != managed.target.key:
            raise IncompatibleSchemaChange(
                f"output {self._output}: the primary key of {schema.table} changed from "
                f"({', '.join(managed.target.key)}) to ({', '.join(schema.primary_key)})", next_step=_RESTART,
            )
        self._check_columns(schema)
        name, types = managed.target.name, dict(managed.types)
        existing = self._target.find_columns(name)
        for column in schema.columns:
            if column.name not in types:
                if column.name not in existing:
                    self._add_column(name, column.name, column.type)
                types[column.name] = column.type
            elif types[column.name] != column.type:
                types[column.name] = self._change_type(managed, column.name, types[column.name], column.type)
        if types == managed.types:
            return managed
        self._target.execute(
            f"UPDATE {self._target.quote(TABLES)} SET columns_json = %s WHERE name = %s", (json.dumps(types), name)
        )
        target = self._describe(name, tuple(types), managed.target.key)
        self._staged.discard(name)
        return replace(managed, target=target, types=types)

    def _change_type(self, managed: ManagedTable, column: str, old_source: str, new_source: str) -> str:
        """Follow a type change; return the source type that the target's column then has."""
        key = managed.target.key
        key_count = len(key) if column in key else 0
        old = self._target.column_type(old_source, key_count)
        new = self._target.column_type(new_source, key_count)
        if widens(new, old):
            return old_source
        if not widens(old, new):
            raise IncompatibleSchemaChange(
                f"output {self._output}: column {column} of {managed.source_table} changed its type from {old_source} "
                f"to {new_source}, whose values {old} cannot hold", next_step=_RESTART,
            )
        self._target.change_type(managed.target.name, column, new)
        failpoint("outputs.sql.type_changed")
        if column in key:
            guard = self._target.guard_name(managed.target.name)
            self._target.change_type(guard, managed.target.guard_key[key.index(column)], new)
        return new_source

    def _add_column(self, name: str, column: str, source_type: str) -> None:
        kind = self._target.column_sql(self._target.column_type(source_type, 0))
        self._target.execute(f"ALTER TABLE {self._target.quote(name)} ADD {self._target.quote(column)} {kind} NULL")
        failpoint("outputs.sql.column_added")

    def _describe(self, name: str, columns: tuple[str, ...], key: tuple[str, ...]) -> TargetTable:
        return TargetTable(
            name, self._target.quote(name), self._target.quote(self._target.guard_name(name)),
            self._target.quote(f"_dblake_stage_{self._stage_numbers.setdefault(name, len(self._stage_numbers))}"),
            columns, key,
        )

    def _target_name(self, source: str, table: str) -> str:
        schema, plain = split_qualified(table)
        name = self._pattern.replace("{source}", source).replace("{schema}", schema).replace("{table}", plain)
        self._target.check_name(name, f"output {self._output}, table {table}")
        owners = self._target.query(f"SELECT name, output, source_table FROM {self._target.quote(TABLES)}")
        owner = next((row for row in owners if self._is_same(row[0], name)), None)
        if owner:
            raise ConfigError(
                f"output {self._output}: {table} and {owner[2]} of output {owner[1]} have the same target table {name}",
                next_step=f'set outputs.{self._output}.table to a pattern with {{schema}}, as "{{schema}}_{{table}}"',
            )
        return name

    def _is_same(self, one: str, other: str) -> bool:
        return one == other or (self._target.folds_case and one.lower() == other.lower())

    def _check_columns(self, schema: TableSchema) -> None:
        for name in schema.names:
            self._target.check_name(name, f"output {self._output}, table {schema.table}")
        double = next(
            (a for a in schema.names for b in schema.names if a < b and self._is_same(a, b)), None
        )
        if double:
            raise ConfigError(
                f"output {self._output}: columns of {schema.table} differ from {double} in letter case only, which the "
                "target does not distinguish",
                next_step="exclude the table, or one of the columns with the output's key columns",
            )
