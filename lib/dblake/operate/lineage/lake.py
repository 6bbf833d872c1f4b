"""Read what jobs read and write: source tables, landing, events, state tables and targets, with columns and origins.

Place: beside ``run``, which calls it in a thread when it sends an event. Guarantee: it reads the logs of Delta tables
and the schemas table, no rows; a state table's columns are read again only when its version has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dblake.base.core.mask_rules import Rules, rules_of
from dblake.base.core.names import split_qualified
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.base.lake.tables import DeltaTable, find_table
from dblake.operate.lineage.events import MAX_DATASETS
from dblake.operate.lineage.model import Dataset, DatasetName, Flow, Origin
from dblake.operate.lineage.names import name_path
from dblake.serve.consume.filters import Selection

NameTable = Callable[[str], DatasetName]
"""Returns the name of a source table, or of a target, for a qualified table name."""


def describe_sources(tables: Iterable[TableSchema], name_table: NameTable) -> list[Dataset]:
    """Return source tables with the columns that the database has."""
    return [Dataset(name_table(table.table), {c.name: c.type for c in table.columns}) for table in tables]


class LakeLineage:
    """The tables of one source. ``name_source`` names the source's tables; ``masks`` are the configured rules."""

    def __init__(self, paths: Paths, name_source: NameTable, masks: Rules) -> None:
        self._paths, self._name_source, self._masks = paths, name_source, masks
        self._columns: dict[str, tuple[int, Mapping[str, str]]] = {}

    def capture(self, sources: Iterable[Dataset]) -> Flow:
        """Return the flow of ``capture``: source tables to landing."""
        return Flow(list(sources), [self.landing()])

    def reconcile(self) -> Flow:
        """Return the flow of ``reconcile``: landing to events."""
        return Flow([self.landing()], [self.events()])

    def state(self) -> Flow:
        """Return the flow of ``state``: events to state tables."""
        return Flow([self.events()], self.states())

    def run(self) -> Flow:
        """Return the flow of ``run``: landing to events and state tables."""
        return Flow([self.landing()], [self.events(), *self.states()])

    def subscribe(self, selection: Selection, name_target: NameTable | None) -> Flow:
        """Return the flow of one output: events, and state for its bootstrap, to targets; to stdout without a name."""
        states = {table: one for table, one in self._states().items() if selection.has_table(table)}
        targets: dict[DatasetName, Dataset] = {}
        schemas = {table: versions[-1].schema for table, versions in read_schemas(self._paths).items()}
        for table, state in states.items() if name_target else ():
            assert name_target is not None
            name = name_target(table)
            chosen = selection.columns_of(schemas[table])
            columns = [c for c in state.origins if chosen is None or c in chosen]
            # Several tables share a topic, a file or an address: it has no columns of its own then.
            targets[name] = Dataset(name) if name in targets else Dataset(
                name, {c: state.columns[c] for c in columns}, {c: Origin(state.name, c) for c in columns}
            )
        return Flow([self.events(), *states.values()], list(targets.values()))

    def landing(self) -> Dataset:
        """Return landing, which may not exist yet."""
        return _describe(self._paths.landing)

    def events(self) -> Dataset:
        """Return events, which may not exist yet."""
        return _describe(self._paths.events)

    def states(self) -> list[Dataset]:
        """Return the state tables at the frontier's versions; each column has the source's column as its origin."""
        return list(self._states().values())

    def _states(self) -> dict[str, Dataset]:
        versions = read_frontier(self._paths).versions
        schemas = read_schemas(self._paths) if versions else {}
        states = {}
        for table, version in sorted(versions.items())[:MAX_DATASETS]:
            path = self._paths.state(*split_qualified(table))
            columns = self._columns_of(table, path, version)
            newest = schemas[table][-1].schema if table in schemas else None
            source, rules = self._name_source(table), rules_of(self._masks, table)
            origins = {name: Origin(source, name, rules.get(name)) for name in (newest.names if newest else ())
                       if name in columns}
            states[table] = Dataset(name_path(path), columns, origins, version)
        return states

    def _columns_of(self, table: str, path: str, version: int) -> Mapping[str, str]:
        if table not in self._columns or self._columns[table][0] != version:
            opened = find_table(path)
            self._columns[table] = version, _columns(opened) if opened else {}
        return self._columns[table][1]


def _describe(path: str) -> Dataset:
    table = find_table(path)
    if table is None:
        return Dataset(name_path(path))
    return Dataset(name_path(path), _columns(table), version=table.version())


def _columns(table: DeltaTable) -> dict[str, str]:
    """Return a Delta table's columns with their types, those that are nested as JSON."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return {f["name"]: f["type"] if isinstance(f["type"], str) else json.dumps(f["type"]) for f in fields}
