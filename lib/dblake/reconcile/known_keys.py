"""What is known of tables' keys when their dumps end: from state where it is complete, else from all events.

State holds the newest event of every key, so a table's own size bounds what the end of its dump reads: state's keys,
and the events that state has not folded in yet. A state table is used if it records how far it is, has the dumped
schema's key, and holds what the events table holds now (not so after a redecode, until state is rebuilt). Of its rows
only the transaction is missing; events whose transactions the dump's first chunk may not have seen are read for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dblake.core.names import split_qualified
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.window import Snapshot
from dblake.decode.columns import OP, TRUNCATE
from dblake.events.schema import POSITION
from dblake.lake.files import file_path
from dblake.lake.frontier import read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import Application
from dblake.landing.columns import BATCH, INCARNATION, TABLE, TXID
from dblake.reconcile.batch_summary import file_parts
from dblake.reconcile.keys import KNOWN, state_keys
from dblake.reconcile.phantoms import as_known_keys, older_than
from dblake.reconcile.runner import Runner
from dblake.reconcile.windows import Ending
from dblake.spark.append_table import AppendTable
from dblake.spark.sql_literals import identifier

FindState = Callable[[TableSchema], "FoldedState | None"]


@dataclass(frozen=True, slots=True)
class FoldedState:
    """A state table whose keys can be used: its files, and the batch up to which it holds all events."""

    schema: TableSchema
    files: tuple[str, ...]
    batch: int


class KnownKeys:
    """Keys known from events, and from state tables as ``find_state`` finds them."""

    def __init__(self, runner: Runner, events: AppendTable, find_state: FindState) -> None:
        self._runner, self._events, self._find_state = runner, events, find_state

    def of_tables(
        self, ended: Sequence[Ending], schemas: Mapping[str, TableSchema]
    ) -> tuple[DataFrame, dict[str, list[Position]]]:
        """Return KNOWN rows of the tables whose dumps end here, and the positions of their truncates.

        Truncates that state has folded in are left out: it has no live row from before them.
        """
        states: dict[str, FoldedState] = {}
        for ending in ended:
            schema = schemas.get(ending.end.schema_id)
            state = self._find_state(schema) if schema and ending.row.table not in states else None
            if state:
                states[ending.row.table] = state
        events = self._events.frame(self._runner.spark)
        unfolded = events.where(reduce(or_, (_unfolded(ending, states) for ending in ended)))
        known = as_known_keys(events.where(reduce(or_, (_needed(ending, states) for ending in ended))))
        if states:
            paths = {path: (state.schema.table, state.schema.primary_key)
                     for state in states.values() for path in state.files}
            of_state = self._runner.frame(file_parts(paths), KNOWN, partial(state_keys, tables=paths))
            known = known.unionByName(of_state) if of_state else known
        return known, _positions(unfolded.where(F.col(OP) == TRUNCATE).select(TABLE, *POSITION))


def no_state(_: TableSchema) -> None:
    """Find no state table: for events that are decoded again, of which state holds what was decoded before."""


def find_state(paths: Paths, schema: TableSchema) -> FoldedState | None:
    """Return a table's state if it has the keys of the events that the events table holds now."""
    # Before the table is opened, so that it is at least as far.
    frontier = read_frontier(paths)
    path = paths.state(*split_qualified(schema.table))
    if not schema.primary_key or not DeltaTable.is_deltatable(path):
        return None
    table = DeltaTable(path)
    settings = table.metadata().configuration
    batch = table.transaction_version(Application.state(paths.source))
    run = Application.redecode(paths.source)
    is_rebuilt = (table.transaction_version(run) or 0) >= (DeltaTable(paths.events).transaction_version(run) or 0)
    has_key = settings.get("dblake.key") == ",".join(map(identifier, schema.primary_key))
    is_plain = (
        settings.get("delta.columnMapping.mode", "none") == "none"
        and settings.get("delta.enableDeletionVectors", "false") == "false"
    )
    if batch is None or not (is_rebuilt and has_key and is_plain):
        return None
    if schema.table not in frontier.behind and schema.table in frontier.versions:
        batch = max(batch, frontier.batch)
    return FoldedState(schema, tuple(file_path(path, file) for file in table.file_uris()), batch)


def _unfolded(ending: Ending, states: Mapping[str, FoldedState]) -> Column:
    of_table = F.col(TABLE) == ending.row.table
    state = states.get(ending.row.table)
    return of_table & (F.col(BATCH) > state.batch) if state else of_table


def _needed(ending: Ending, states: Mapping[str, FoldedState]) -> Column:
    """Events that state does not hold, or without whose transaction its rows cannot be judged."""
    began, unfolded = ending.end.began, _unfolded(ending, states)
    if began is None or not began.snapshot or ending.row.table not in states:
        return unfolded
    maybe_unseen = (
        (F.col(TABLE) == ending.row.table) & (F.col(INCARNATION) == began.incarnation)
        & older_than(began.position) & (F.col(TXID) >= Snapshot.parse(began.snapshot).xmin)
    )
    return unfolded | maybe_unseen


def _positions(truncates: DataFrame) -> dict[str, list[Position]]:
    found: dict[str, list[Position]] = {}
    rows: Iterable[tuple[str, int, int, int]] = truncates.collect()
    for table, *at in rows:
        found.setdefault(table, []).append(Position(*at))
    return found
