"""Replicate a subscription into PostgreSQL, MySQL or MariaDB: tables, rows, schema changes, exactly once.

Place: the output of type ``sql``. Guarantee: one transaction of the target applies a whole ``write`` and stores its
checkpoint, so every transaction of the source takes effect once and whole, whenever the process ends. No event
overwrites a newer one or brings a deleted row back, also if events are delivered again from an earlier point. The guard
table beside each table keeps the position of every key, deleted ones included. It forgets a position when a redecode
replaces events, or when no older event of the key can be delivered. What a target cannot hold is rejected by table,
position and column. Which transactions to write is left to ``consume``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dblake.base.core.errors import ConsumeError, EventRejected, OutputUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.tls import Tls
from dblake.serve.consume.model import Control, ControlKind, Event, Transaction
from dblake.serve.outputs.protocol import OutputContext
from dblake.serve.outputs.sql.errors import ValueRejected
from dblake.serve.outputs.sql.expiry import ExpiredPositions
from dblake.serve.outputs.sql.fold import RowChange, Stretches, TableChanges, fold_events
from dblake.serve.outputs.sql.settings import SqlSettings
from dblake.serve.outputs.sql.tables import ManagedTable, TargetTables
from dblake.serve.outputs.sql.target import CHECKPOINTS, MOVED_AT, Shapes, Target, TargetTable

_MAX_FOLDED_EVENTS = 50_000
"""Events folded at a time: bounds the memory that a large transaction takes."""

_Bootstraps = dict[str, tuple[int, list[str]]]
"""Source → the number of its newest bootstrap, and the tables in it."""


def _open_target(settings: SqlSettings) -> Target:
    # Only one of the drivers has to be installed.
    if settings.flavour == "postgres":
        from dblake.serve.outputs.sql.postgres import PostgresTarget

        return PostgresTarget(settings)
    from dblake.serve.outputs.sql.mysql import MysqlTarget

    return MysqlTarget(settings)


class SqlOutput:
    """The output of type ``sql``; ``config.outputs`` documents the settings."""

    holds_checkpoint = True

    def __init__(
        self, context: OutputContext, *, url: str, schema: str | None = None, table: str = "{table}",
        tls: Tls = "verify", tls_ca: str | None = None,
    ) -> None:
        self._name, self._sources = context.name, context.sources
        # A class of the user's that extends this one has its secrets under ``settings``.
        secrets = {key.removeprefix("settings."): value for key, value in context.secrets.items()}
        settings = SqlSettings.parse(
            context.name, url, password=secrets.get("password", ""), schema=schema, tls=tls, tls_ca=tls_ca
        )
        self._target = _open_target(settings)
        self._tables = TargetTables(self._target, context.name, table)
        self._expired = ExpiredPositions(self._target, context.name)
        self._checkpoint: str | None = None
        self._bootstraps: _Bootstraps = {}
        self._is_current = False

    def open(self) -> str | None:
        """Connect, create the output's own tables, and return the checkpoint that the target holds."""
        self._target.connect()
        text = self._target.large_text
        self._target.execute(
            f"CREATE TABLE IF NOT EXISTS {self._target.quote(CHECKPOINTS)} (output varchar(64) NOT NULL PRIMARY KEY, "
            f"checkpoint {text}, bootstraps {text} NOT NULL, written_at timestamp DEFAULT CURRENT_TIMESTAMP)"
        )
        self._tables.open()
        self._expired.open()
        rows = self._target.query(
            f"SELECT checkpoint, bootstraps FROM {self._target.quote(CHECKPOINTS)} WHERE output = %s", (self._name,)
        )
        if not rows:
            self._target.execute(
                f"INSERT INTO {self._target.quote(CHECKPOINTS)} (output, bootstraps) VALUES (%s, '{{}}')", (self._name,)
            )
        self._checkpoint, self._bootstraps = (rows[0][0], json.loads(rows[0][1])) if rows else (None, {})
        self._is_current = True
        return self._checkpoint

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Apply transactions and store the checkpoint, in one transaction of the target.

        Raises EventRejected for a value that the target cannot hold, OutputUnavailable where a retry may succeed, and
        ConsumeError, ConfigError or IncompatibleSchemaChange where only a person can correct the cause.
        """
        if not self._is_current:
            self._reload()
        self._is_current = False
        current: list[_Stretch] = []
        try:
            self._require_own_checkpoint()
            self._follow_schemas(transactions)
            failpoint("outputs.sql.prepared")
            bootstraps = dict(self._bootstraps)
            with self._target.transaction():
                self._require_own_checkpoint()
                for part in _stretches(transactions):
                    if isinstance(part, Control):
                        self._apply_control(part, bootstraps)
                        continue
                    for changes in fold_events(part).values():
                        current[:] = [_Stretch(changes, part)]
                        self._apply(changes, part[0].source, bootstraps)
                failpoint("outputs.sql.applied")
                self._target.execute(
                    f"UPDATE {self._target.quote(CHECKPOINTS)} SET checkpoint = %s, bootstraps = %s, "
                    "written_at = CURRENT_TIMESTAMP WHERE output = %s",
                    (checkpoint, json.dumps(bootstraps), self._name),
                )
            failpoint("outputs.sql.committed")
        except ValueRejected as rejected:
            raise self._find_rejected(rejected, current[0] if current else None) from rejected
        self._checkpoint, self._bootstraps, self._is_current = checkpoint, bootstraps, True

    def expire(self, source: str, upto: Position) -> None:
        """Forget deleted keys up to a position; see Output."""
        if self._is_current and self._expired.is_news(source, upto):
            with self._target.transaction():
                self._require_own_checkpoint()
                self._expired.forget(self._tables.of_source(source), source, upto)

    def close(self) -> None:
        """Close the connection to the target."""
        self._target.close()
        self._is_current = False

    def _reload(self) -> None:
        """Read what the target holds after a write that failed: its transaction was rolled back."""
        self._tables.open()

    def _follow_schemas(self, transactions: Sequence[Transaction]) -> None:
        schemas: dict[tuple[str, str], list[TableSchema]] = {}
        for transaction in transactions:
            for event in transaction.events:
                versions = schemas.setdefault((event.source, event.table), [])
                if not versions or versions[-1].schema_id != event.schema_id:
                    _check_event(self._name, event)
                    versions.append(event.schema)
                elif event.undecoded:
                    _check_event(self._name, event)
        if self._target.has_transactional_ddl:
            with self._target.transaction():
                self._follow(schemas)
        else:
            self._follow(schemas)

    def _follow(self, schemas: dict[tuple[str, str], list[TableSchema]]) -> None:
        for (source, _), versions in schemas.items():
            self._tables.follow(source, versions)

    def _require_own_checkpoint(self) -> None:
        """Lock this output's row; refuse to write beside another process that has written since."""
        rows = self._target.query(
            f"SELECT checkpoint FROM {self._target.quote(CHECKPOINTS)} WHERE output = %s FOR UPDATE", (self._name,)
        )
        if not rows or rows[0][0] != self._checkpoint:
            raise OutputUnavailable(
                f"output {self._name}: another process has written to the target since this one last did",
                next_step="stop the other subscribe of this output, then run again",
            )

    def _apply_control(self, control: Control, bootstraps: _Bootstraps) -> None:
        if control.kind is ControlKind.REDECODED:
            # Positions of events that are no longer there must not keep the rows of the bootstrap that follows away.
            for managed in self._tables.of_source(control.source):
                if managed.source_table == control.table:
                    self._target.forget_positions(managed.target)
                    self._tables.set_floor(managed, None)
        elif control.kind is ControlKind.BOOTSTRAP_STARTED:
            number = number_of(bootstraps, control.source) + 1
            bootstraps[control.source] = (number, list(control.details.get("tables", ())))
        elif control.kind is ControlKind.BOOTSTRAP_FINISHED:
            number, tables = bootstraps.get(control.source, (0, []))
            for managed in self._tables.of_source(control.source):
                if managed.source_table in tables:
                    self._target.delete_unseen(managed.target, control.position, number)

    def _apply(self, changes: TableChanges, source: str, bootstraps: _Bootstraps) -> None:
        managed = self._tables.find(source, changes.table)
        if changes.truncated:
            self._target.truncate(managed.target, changes.truncated)
            if managed.floor is None or managed.floor < changes.truncated:
                managed = self._tables.set_floor(managed, changes.truncated)
        if changes.rows:
            self._apply_rows(managed, list(changes.rows.values()), number_of(bootstraps, source))

    def _apply_rows(self, managed: ManagedTable, rows: list[RowChange], seen: int) -> None:
        columns, shapes, takes = stage(managed, rows)
        self._target.load(managed.target, columns)
        self._target.apply(managed.target, shapes, takes, managed.floor, seen)

    def _find_rejected(self, rejected: ValueRejected, stretch: _Stretch | None) -> Exception:
        """Return the error that names the event of a rejected value: try halves of the rows, and roll each back."""
        if stretch is None:
            return ConsumeError(f"output {self._name}: {rejected.reason}")
        self._reload()
        managed = self._tables.find(stretch.events[0].source, stretch.changes.table)
        rows = list(stretch.changes.rows.values())
        found: ValueRejected | None = self._try(managed, rows)
        while found and len(rows) > 1:
            half = rows[: len(rows) // 2]
            first = self._try(managed, half)
            rows, found = (half, first) if first else (rows[len(rows) // 2:], self._try(managed, rows[len(rows) // 2:]))
        column = managed.target.columns[found.column] if found and isinstance(found.column, int) else (
            found.column if found else None)
        place = f"output {self._name}: table {stretch.changes.table}{f', column {column}' if column else ''}"
        if found is None:
            return ConsumeError(
                f"{place}: the target rejects several rows together: {rejected.reason}",
                next_step="drop unique keys and constraints of the target's table beside its primary key",
            )
        event = stretch.event_of(rows[0], str(column))
        return EventRejected(
            f"{place}: the row at {event.position} has {found.reason}", table=event.table, position=event.position,
            next_step="correct the value at the source, or exclude the column with the output's key columns",
        )

    def _try(self, managed: ManagedTable, rows: list[RowChange]) -> ValueRejected | None:
        self._target.begin()
        try:
            self._apply_rows(managed, rows, 0)
        except ValueRejected as rejected:
            return rejected
        finally:
            self._target.rollback()
        return None


class _Stretch:
    """Events between two control entries, and one table's changes among them."""

    def __init__(self, changes: TableChanges, events: Sequence[Event]) -> None:
        self.changes, self.events = changes, events

    def event_of(self, row: RowChange, column: str) -> Event:
        """Return the newest event of a row that carries a column."""
        for event in reversed(self.events):
            if event.table == row.event.table and event.key == row.event.key and column in (event.after or {}):
                return event
        return row.event


def number_of(bootstraps: _Bootstraps, source: str) -> int:
    """Return the number of a source's newest bootstrap; 0 before the first."""
    return bootstraps[source][0] if source in bootstraps else 0


def _stretches(transactions: Sequence[Transaction]) -> Iterator[list[Event] | Control]:
    """Yield the events in lists of limited length, and control entries between them."""
    stretches = Stretches(_MAX_FOLDED_EVENTS)
    for transaction in transactions:
        if transaction.control:
            if events := stretches.end():
                yield events
            yield transaction.control
        for event in transaction.events:
            if events := stretches.add(event):
                yield events
    if events := stretches.end():
        yield events


def stage(managed: ManagedTable, rows: list[RowChange]) -> tuple[dict[str, list[Any]], Shapes, Shapes]:
    """Return rows as columns of the stage, the columns that the rows of each shape supply, and those they take."""
    names = managed.target.columns
    every = frozenset(names)
    numbers: dict[frozenset[str], int] = {every: 0}
    shape_of = [
        0 if row.begins else numbers.setdefault(every.intersection(row.values), len(numbers)) for row in rows
    ]
    columns: dict[str, list[Any]] = {
        f"c{index}": [row.values.get(name) for row in rows] for index, name in enumerate(names)
    }
    columns["incarnation"] = [row.event.position.incarnation for row in rows]
    columns["lsn"] = [row.event.position.lsn for row in rows]
    columns["seq"] = [row.event.position.seq for row in rows]
    columns["deleted"] = [row.deleted for row in rows]
    columns["incomplete"] = [(2 if row.begins else 1) if row.incomplete else 0 for row in rows]
    columns["shape"] = shape_of
    takes = _stage_moved(managed.target, rows, columns)
    used = set(shape_of)
    shapes: Shapes = {
        number: [name for name in names if name in supplied]
        for supplied, number in numbers.items() if number in used
    }
    return columns, shapes, takes


def _stage_moved(table: TargetTable, rows: list[RowChange], columns: dict[str, list[Any]]) -> Shapes:
    """Add the stage's columns of rows that take values from their origin; return the columns that each kind takes."""
    numbers: dict[tuple[str, ...], int] = {}
    moved: list[int | None] = [
        numbers.setdefault(tuple(name for name in table.columns if name not in row.values), len(numbers) + 1)
        if row.origin else None for row in rows
    ]
    if not numbers:
        return {}
    columns["moved"] = moved
    for index, name in enumerate(table.origin_key):
        columns[name] = [row.origin[index] if row.origin else None for row in rows]
    for name, part in zip(MOVED_AT, Position.COLUMNS, strict=True):
        columns[name] = [getattr(row.moved_at, part) if row.moved_at else None for row in rows]
    return {number: names for names, number in numbers.items()}


def _check_event(output: str, event: Event) -> None:
    if event.undecoded and event.op != Op.DELETE:
        raise EventRejected(
            f"output {output}: table {event.table}, column {event.undecoded[0]}: the row at {event.position} has bytes "
            "that are not valid text",
            table=event.table, position=event.position, next_step="correct the value at the source",
        )
