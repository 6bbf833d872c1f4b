"""What is known of tables' keys when their dumps end: from state where it is complete, else from all events.

State holds the newest event of every key, so a table's own size bounds what the end of its dump reads: state's keys,
and the events that state has not folded in yet. A state table is used if it records how far it is, has the dumped
schema's key, and holds what the events table holds now (not so after a redecode, until state is rebuilt). Of its rows
only the transaction is missing; events whose transactions the dump's first chunk may not have seen are read for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dblake.core.names import split_qualified
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.window import Snapshot
from dblake.decode.columns import OP, TRUNCATE
from dblake.events.schema import POSITION
from dblake.lake.files import file_path
from dblake.lake.frontier import Frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import Application
from dblake.lake.tables import has_table, maps_columns, open_table
from dblake.landing.columns import BATCH, TABLE, TXID
from dblake.reconcile.batch_summary import file_parts
from dblake.reconcile.earlier_rows import Beginnings, has_row_before, tables_before_in_events
from dblake.reconcile.keys import KNOWN, state_keys
from dblake.reconcile.phantoms import as_known_keys
from dblake.reconcile.runner import Runner
from dblake.reconcile.windows import Ending
from dblake.spark.append_table import AppendTable
from dblake.spark.sql_literals import identifier

_BOUNDS = pa.schema([
    (TABLE, pa.string()), ("folded", pa.int64()), ("b_incarnation", pa.int64()), ("b_lsn", pa.int64()),
    ("xmin", pa.int64()),
])
_IS_UNFOLDED = "batch > folded"
# Without its transaction a row of state cannot be judged.
_MAY_BE_UNSEEN = "incarnation = b_incarnation AND lsn < b_lsn AND txid >= xmin"
_MANY_TABLES = 200
_SCANNED_BYTES, _SCANNED_FILES = 128 << 20, 1_000
"""So many events are compared in the driver: more take longer than Spark's start."""

FindStates = Callable[[Iterable[TableSchema]], "list[FoldedState]"]


@dataclass(frozen=True, slots=True)
class FoldedState:
    """A state table whose keys can be used: its files, and the batch up to which it holds all events."""

    schema: TableSchema
    files: tuple[str, ...]
    batch: int


class KnownKeys:
    """Keys known from events, and from state tables as ``find_states`` finds them."""

    def __init__(self, runner: Runner, events: AppendTable, find_states: FindStates) -> None:
        self._runner, self._events, self._find_states = runner, events, find_states

    def tables_before(self, began: Beginnings, schemas: Iterable[TableSchema]) -> set[str]:
        """Return the tables that may have events, or rows of state, from before their dumps began."""
        files = self._events.files()
        if sum(files.values()) > _SCANNED_BYTES or len(files) > _SCANNED_FILES:
            return set(began)
        found = tables_before_in_events(file_parts(files), began)
        states = self._find_states(schema for schema in schemas if schema.table not in found)
        return found | {
            state.schema.table for state in states if has_row_before(state.files, began[state.schema.table])
        }

    def of_tables(
        self, ended: Sequence[Ending], schemas: Mapping[str, TableSchema]
    ) -> tuple[DataFrame, dict[str, list[Position]]]:
        """Return KNOWN rows of the tables whose dumps end here, and the positions of their truncates.

        Truncates that state has folded in are left out: it has no live row from before them.
        """
        dumped = {ending.row.table: schemas.get(ending.end.schema_id) for ending in ended}
        folded = self._find_states(schema for schema in dumped.values() if schema)
        states = {state.schema.table: state for state in folded}
        spark = self._runner.spark
        bounds = F.broadcast(spark.createDataFrame(_bounds(ended, states)))
        # An earlier row of one table may come once for each of its dumps that end here, which changes nothing.
        events = self._events.frame(spark).where(_may_count(ended, states)).join(bounds, TABLE, "inner")
        known = as_known_keys(events.where(f"{_IS_UNFOLDED} OR ({_MAY_BE_UNSEEN})"))
        if states:
            paths = {path: (state.schema.table, state.schema.primary_key)
                     for state in states.values() for path in state.files}
            of_state = self._runner.frame(file_parts(paths), KNOWN, partial(state_keys, tables=paths))
            known = known.unionByName(of_state) if of_state else known
        return known, _positions(events.where(_IS_UNFOLDED).where(F.col(OP) == TRUNCATE).select(TABLE, *POSITION))


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


def _bounds(ended: Sequence[Ending], states: Mapping[str, FoldedState]) -> pa.Table:
    """Return a row for each dump that ends: ``table``, the batch that state holds (0 without), and its beginning."""
    rows = []
    for ending in ended:
        state, began = states.get(ending.row.table), ending.end.dump_start
        row: dict[str, object] = {TABLE: ending.row.table, "folded": state.batch if state else 0}
        if began and began.snapshot and state:
            at = began.position
            row |= {"b_incarnation": at.incarnation, "b_lsn": at.lsn, "xmin": Snapshot.parse(began.snapshot).xmin}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_BOUNDS)


def _may_count(ended: Sequence[Ending], states: Mapping[str, FoldedState]) -> Column:
    """Return a condition that few other events fulfil, made of constants, so that file statistics skip the rest."""
    without = {ending.row.table for ending in ended} - states.keys()
    counts = F.col(TABLE).isin(sorted(without)) if without else F.lit(False)
    if len(without) > _MANY_TABLES:
        return F.lit(True)
    if states:
        later = F.col(BATCH) > min(state.batch for state in states.values())
        began = [ending.end.dump_start for ending in ended if ending.row.table in states]
        oldest = [Snapshot.parse(each.snapshot).xmin for each in began if each and each.snapshot]
        counts = counts | (later | (F.col(TXID) >= min(oldest)) if oldest else later)
    return counts


def _positions(truncates: DataFrame) -> dict[str, list[Position]]:
    positions: dict[str, list[Position]] = {}
    rows: Iterable[tuple[str, int, int, int]] = truncates.collect()
    for table, *at in rows:
        positions.setdefault(table, []).append(Position(*at))
    return positions
