"""What is known of tables' keys when their dumps end: from state where it is complete, else from all events.

State holds the newest event of every key, so a table's own size bounds what the end of its dump reads: state's keys,
and the events that state has not folded in yet. A state table is used if it records how far it is, has the dumped
schema's key, and holds what the events table holds now (not so after a redecode, until state is rebuilt). Of its rows
only the transaction is missing; events whose transactions the dump's first chunk may not have seen are read for it.
Reading and comparing the keys is left to ``key_join``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.names import split_qualified
from dblake.base.core.schema import TableSchema
from dblake.base.core.window import Snapshot
from dblake.base.lake.files import file_path
from dblake.base.lake.frontier import Frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.tables import has_table, list_files, maps_columns, open_table
from dblake.transform.reconcile.batch_summary import file_parts
from dblake.transform.reconcile.earlier_rows import Beginnings, has_row_before, tables_before_in_events
from dblake.transform.reconcile.key_join import KeySource
from dblake.transform.reconcile.keys import KNOWN, TRUNCATES, EventBounds, event_keys, event_truncates, state_keys
from dblake.transform.reconcile.windows import Ending
from dblake.transform.spark.sql_literals import identifier

_SCANNED_BYTES, _SCANNED_FILES = 128 << 20, 1_000
"""So many events are searched for rows from before a dump: more take longer than comparing its keys."""

FindStates = Callable[[Iterable[TableSchema]], "list[FoldedState]"]


class KnownKeys(Protocol):
    """What is known of keys from before a micro-batch."""

    def tables_before(self, began: Beginnings, schemas: Iterable[TableSchema]) -> set[str]:
        """Return the tables that may have events, or rows of state, from before their dumps began."""

    def sources(self, ended: Sequence[Ending], schemas: Mapping[str, TableSchema]) -> KnownSources:
        """Return the keys of the tables whose dumps end here."""


@dataclass(frozen=True, slots=True)
class KnownSources:
    """``keys`` become KNOWN rows, ``truncates`` the positions of truncates, but for those that state has folded in.

    State has no live row from before those.
    """

    keys: tuple[KeySource, ...]
    truncates: KeySource


@dataclass(frozen=True, slots=True)
class FoldedState:
    """A state table whose keys can be used: its files, and the batch up to which it holds all events."""

    schema: TableSchema
    files: tuple[str, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class EventFiles:
    """Files of an events table, with their statistics. Events count before batch ``limit``, if there is one."""

    path: str
    files: pa.Table
    limit: int | None = None

    def sizes(self) -> dict[str, int]:
        """Return all files' sizes in bytes, by path."""
        return dict(zip(self._paths(self.files), self.files["size_bytes"].to_pylist(), strict=True))

    def paths(self, tables: Mapping[str, EventBounds]) -> list[str]:
        """Return the files that may hold events that count, by their statistics."""
        may_hold = np.zeros(self.files.num_rows, np.bool_)
        low_table, high_table = self._statistic("min.table"), self._statistic("max.table")
        for table, bounds in tables.items():
            of_table = _holds(low_table, pc.less_equal, table) & _holds(high_table, pc.greater_equal, table)
            counts = _holds(self._statistic("max.batch"), pc.greater, bounds.folded)
            if bounds.began:
                counts |= _holds(self._statistic("max.txid"), pc.greater_equal, bounds.xmin)
            may_hold |= of_table & counts
        return self._paths(self.files.filter(pa.array(may_hold)))

    def _paths(self, files: pa.Table) -> list[str]:
        return [file_path(self.path, file) for file in files["path"].to_pylist()]

    def _statistic(self, name: str) -> pa.ChunkedArray | None:
        return self.files[name] if name in self.files.column_names else None


class LakeKeys:
    """Keys known from the events table and, where ``find_states`` finds them, from state tables."""

    def __init__(self, find_events: Callable[[], list[EventFiles]], find_states: FindStates) -> None:
        self._find_events, self._find_states = find_events, find_states

    def tables_before(self, began: Beginnings, schemas: Iterable[TableSchema]) -> set[str]:
        """Return the tables that may have events, or rows of state, from before their dumps began."""
        files = {path: size for events in self._find_events() for path, size in events.sizes().items()}
        if sum(files.values()) > _SCANNED_BYTES or len(files) > _SCANNED_FILES:
            return set(began)
        found = tables_before_in_events(file_parts(files), began)
        states = self._find_states(schema for schema in schemas if schema.table not in found)
        return found | {
            state.schema.table for state in states if has_row_before(state.files, began[state.schema.table])
        }

    def sources(self, ended: Sequence[Ending], schemas: Mapping[str, TableSchema]) -> KnownSources:
        """Return the keys of the tables whose dumps end here."""
        dumped = {ending.row.table: schemas.get(ending.end.schema_id) for ending in ended}
        folded = self._find_states(schema for schema in dumped.values() if schema)
        states = {state.schema.table: state for state in folded}
        of_events = event_sources(self._find_events(), _bounds(ended, states))
        of_state = {path: (state.schema.table, state.schema.primary_key)
                    for state in states.values() for path in state.files}
        keys = KeySource(file_parts(of_state), KNOWN, partial(state_keys, tables=of_state))
        return KnownSources((*of_events.keys, keys), of_events.truncates)


def event_sources(events: Iterable[EventFiles], tables: Mapping[str, EventBounds]) -> KnownSources:
    """Return the keys, and truncates, of the events that count."""
    limits: dict[str, int] = {}
    paths: list[str] = []
    for each in events:
        chosen = each.paths(tables)
        paths += chosen
        limits |= {path: each.limit for path in chosen if each.limit is not None}
    parts = file_parts(paths)
    return KnownSources(
        (KeySource(parts, KNOWN, partial(event_keys, tables=tables, limits=limits)),),
        KeySource(parts, TRUNCATES, partial(event_truncates, tables=tables, limits=limits)),
    )


def find_events(paths: Paths, earlier: tuple[Paths, int] | None = None) -> list[EventFiles]:
    """Return the files of the events table as it is now, and those of an earlier one up to a batch."""
    own = EventFiles(paths.events, list_files(open_table(paths.events)))
    if earlier is None:
        return [own]
    before, batch = earlier
    return [EventFiles(before.events, list_files(open_table(before.events)), batch), own]


def no_states(_: Iterable[TableSchema]) -> list[FoldedState]:
    """Find no state table: for events that are decoded again, of which state holds what was decoded before."""
    return []


def find_states(paths: Paths, schemas: Iterable[TableSchema]) -> list[FoldedState]:
    """Return those tables' states that have the keys of the events that the events table holds now."""
    # Before the tables are opened, so that they are at least as far.
    frontier = read_frontier(paths)
    states = (_find_state(paths, schema, frontier) for schema in schemas)
    return [state for state in states if state]


def _find_state(paths: Paths, schema: TableSchema, frontier: Frontier) -> FoldedState | None:
    path = paths.state(*split_qualified(schema.table))
    if not schema.primary_key or not has_table(path):
        return None
    table = open_table(path)
    settings = table.metadata().configuration
    batch = table.transaction_version(Application.state(paths.source))
    run = Application.redecode(paths.source)
    is_rebuilt = (table.transaction_version(run) or 0) >= (open_table(paths.events).transaction_version(run) or 0)
    has_key = settings.get("dblake.key") == ",".join(map(identifier, schema.primary_key))
    is_plain = not maps_columns(table) and settings.get("delta.enableDeletionVectors", "false") == "false"
    if batch is None or not (is_rebuilt and has_key and is_plain):
        return None
    if schema.table not in frontier.behind and schema.table in frontier.versions:
        batch = max(batch, frontier.batch)
    return FoldedState(schema, tuple(file_path(path, file) for file in table.file_uris()), batch)


def _bounds(ended: Sequence[Ending], states: Mapping[str, FoldedState]) -> dict[str, EventBounds]:
    """Return which events count, by table: of several dumps of one table, what counts for any of them."""
    bounds: dict[str, EventBounds] = {}
    for ending in ended:
        table, began = ending.row.table, ending.end.dump_start
        state = states.get(table)
        if state is None:
            bounds[table] = EventBounds()
        elif began and began.snapshot:
            own = EventBounds(state.batch, began.position, Snapshot.parse(began.snapshot).xmin)
            bounds[table] = _wider(bounds.get(table), own)
        else:
            bounds.setdefault(table, EventBounds(state.batch))
    return bounds


def _wider(one: EventBounds | None, other: EventBounds) -> EventBounds:
    """Return bounds within which all events count that count within one of two."""
    if one is None or one.began is None or other.began is None:
        return other
    if one.began.incarnation != other.began.incarnation:
        return EventBounds()
    return EventBounds(min(one.folded, other.folded), max(one.began, other.began), min(one.xmin, other.xmin))


def _holds(statistic: pa.ChunkedArray | None, compare: Callable[..., pa.ChunkedArray], limit: object) -> np.ndarray:
    """Return where a statistic compares; a file without it may hold anything."""
    if statistic is None:
        return np.array(True)
    held: np.ndarray = pc.fill_null(compare(statistic, limit), True).to_numpy().astype(np.bool_)
    return held
