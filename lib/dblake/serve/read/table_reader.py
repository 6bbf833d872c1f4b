"""One table of a reading: its state version, and the rows of the keys that newer events touch.

Place: below ``reading``, which fixes the position for all tables. Guarantee: the table's rows are those after exactly
the events up to that position; a table that cannot be read there is returned as of its own, earlier position, or
rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import PointOutOfRange, StateError
from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SchemaVersion
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.fold import FOLDED, TooLargeToFold, fold_all, fold_over, shape_over
from dblake.serve.read.points import describe
from dblake.serve.read.tail import Tail
from dblake.serve.read.versions import StateVersion, StateVersions
from dblake.transform.events.predicate import Predicate
from dblake.transform.state.shape import Shape
from dblake.transform.state.values import arrow_type

_KEPT_BYTES = 32 << 20
"""Events of files up to this size are read once for all tables of a reading."""
_BEGINNING = Position(1, 0, 0)


@dataclass(frozen=True)
class TableReading:
    """One table of a reading.

    ``table`` is its qualified name, ``path`` its state table. ``version`` is the Delta version to read; None if no row
    of state counts. ``keys`` are the key columns, none for a table that is only appended to. ``changes`` has, for every
    key with newer events, its row at the position: ``_key``, the other columns of state, ``_deleted``, and the columns
    of ``shape`` with their types; None if nothing is newer than ``version``. ``position`` is the reading's, or an
    earlier one if the table lags.
    """

    table: str
    path: str
    version: int | None
    keys: tuple[str, ...]
    changes: pa.Table | None
    position: Position
    shape: Shape

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table at the position, in the source's order."""
        return tuple(column.name for column in self.shape.current)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of ``columns``."""
        return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in self.shape.current])


@dataclass(frozen=True)
class Basis:
    """What a reading rests on: events up to ``cut``, over the ``frontier`` at or before it, and a live one's tail."""

    frontier: Frontier
    is_newest: bool
    cut: Position
    position: Position
    log: EventLog | None
    tail: Tail | None = None

    @cached_property
    def newer(self) -> pa.Table | None:
        """The events of all tables after the frontier, read once; None if their files are too large to keep them."""
        wanted = Predicate(until=self.cut, after_batch=self.frontier.batch)
        if self.log is None or self.log.estimate_bytes(wanted) > _KEPT_BYTES:
            return None
        return self.log.read_all(wanted, FOLDED)


@dataclass(frozen=True)
class TableReader:
    """Resolves one table."""

    paths: Paths
    basis: Basis
    versions: StateVersions
    table: str
    schemas: Sequence[SchemaVersion]

    def read(self, *, is_strict: bool) -> TableReading:
        state = self.versions.find(self.table, self.basis.frontier, is_newest=self.basis.is_newest)
        try:
            if state is None and not self.versions.is_expected(self.table, self.basis.frontier):
                # It had no events up to the frontier.
                return self._from_events(self._events(self.basis.frontier.batch))
            return self._folded(state)
        except StateError:
            if is_strict:
                raise
            return self._lagging(state)

    def _folded(self, state: StateVersion | None) -> TableReading:
        events = self._events(state.batch if state else 0)
        if state is not None:
            if not events.num_rows:
                return self._reading(state.version, None, shape_over(state, self.schemas))
            try:
                shape, version, rows = fold_over(self.versions.path(self.table), state, self.schemas, events)
                return self._reading(version, rows, shape)
            except TooLargeToFold:
                raise
            except StateError:
                events = self._events(0)
        self._require_all_events()
        return self._from_events(events)

    def _from_events(self, events: pa.Table) -> TableReading:
        """Read a table from events alone, which are all it has up to the position."""
        if not events.num_rows:
            return self._reading(None, None, shape_over(None, self.schemas))
        shape, rows = fold_all(self.paths, self.schemas, events, pc.max(events["batch"]).as_py())
        return self._reading(None, rows, shape)

    def _events(self, after_batch: int) -> pa.Table:
        """Read the table's events after a batch, up to the reading's position."""
        basis, parts = self.basis, []
        wanted = Predicate(until=basis.cut, after_batch=after_batch, tables=(self.table,))
        # All events of the frontier's batches precede its position.
        if basis.log and not (after_batch >= basis.frontier.batch and basis.position == basis.frontier.position):
            newer = basis.newer if after_batch >= basis.frontier.batch else None
            parts.append(basis.log.read_all(wanted, FOLDED) if newer is None else wanted.filter(newer))
        if basis.tail:
            parts.append(wanted.filter(basis.tail.events).select(FOLDED))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in FOLDED})

    def _require_all_events(self) -> None:
        """Raise PointOutOfRange if maintenance removed events that a fold of all up to the position needs."""
        log = self.basis.log
        removed = log.newest(Predicate(until_batch=log.consolidated)) if log and log.consolidated else None
        if removed and self.basis.cut < removed.position:
            raise PointOutOfRange(
                f"table {self.table} cannot be read at {describe(self.basis.position)}: the files of its state are "
                f"gone, limited by maintain.vacuum_hours, and superseded events before {describe(removed.position)}, "
                "by maintain.events_days", next_step="choose a later point",
            )

    def _lagging(self, state: StateVersion | None) -> TableReading:
        """Read the table as of its own, earlier position."""
        batch = state.batch if state else 0
        schemas = [version for version in self.schemas if version.batch <= batch]
        if state is None or not schemas:
            return TableReading(self.table, self.versions.path(self.table), None, self.schemas[-1].schema.primary_key,
                                None, _BEGINNING, shape_over(None, self.schemas[-1:]))
        place = self.basis.log.newest(Predicate(until_batch=batch)) if self.basis.log else None
        shape = shape_over(state, schemas)
        return TableReading(self.table, self.versions.path(self.table), state.version, shape.primary_key, None,
                            place.position if place else _BEGINNING, shape)

    def _reading(self, version: int | None, changes: pa.Table | None, shape: Shape) -> TableReading:
        return TableReading(self.table, self.versions.path(self.table), version, shape.primary_key, changes,
                            self.basis.position, shape)
