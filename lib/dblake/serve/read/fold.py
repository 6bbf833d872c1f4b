"""Newer events over a version of a state table: the rows of every key they touch, as state will have them.

Guarantee: the functions are state's own fold and upsert, so the rows equal those that state has once it has merged the
same events. Nothing is written. Which version and which events belong together is ``reading``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import IncompatibleSchemaChange, StateError
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SchemaVersion
from dblake.serve.read.versions import StateVersion
from dblake.transform.events.predicate import Predicate
from dblake.transform.state.events import KeyFilter, newest_truncate
from dblake.transform.state.files import TableFiles, table_columns
from dblake.transform.state.fold import NEEDED, UNKNOWN, fold
from dblake.transform.state.moved import as_columns, read_rows, row_schema, supply_moved
from dblake.transform.state.rebuild import closed_windows, dumped_in
from dblake.transform.state.shape import (
    REBUILD,
    Shape,
    first_compatible_version,
    key_changed,
    require_one_key,
    shape_of,
    widened_to_fit,
)
from dblake.transform.state.table import progress_of
from dblake.transform.state.upsert import Change, first_rows, match_keys, updated

#: The columns of events that the functions here read.
FOLDED = (*NEEDED, "table", "schema_id")
FOLDED_BYTES = 2 << 30
"""Bytes of one column of events, or of rows, that are folded at once: an array of texts holds no more."""


class TooLargeToFold(StateError):
    """A table's events between a state version and a point, or the rows that they change, do not fit in memory."""

    @classmethod
    def require_fit(cls, table: str, what: str, rows: pa.Table) -> None:
        """Raise this error if a column of rows has more than FOLDED_BYTES."""
        most = max((column.nbytes for column in rows.columns), default=0)
        if most > FOLDED_BYTES:
            raise cls(
                f"table {table}: {what} have {most >> 20} MiB in one column; a reading folds {FOLDED_BYTES >> 20} MiB",
                next_step="run state, and read at state's frontier; or choose an earlier or later point",
            )


def shape_over(state: StateVersion | None, versions: Sequence[SchemaVersion]) -> Shape:
    """Return the shape after these schemas, with the types that the state table has or must grow to.

    Raises IncompatibleSchemaChange if rows of the state table do not fit it.
    """
    shape = shape_of([version.schema for version in versions])
    if state is None:
        return shape
    progress_of(state.table, "").require_key(shape)
    return widened_to_fit(shape, table_columns(state.table).types)


def fold_over(
    path: str, state: StateVersion | None, versions: Sequence[SchemaVersion], events: pa.Table
) -> tuple[Shape, int | None, pa.Table]:
    """Return a table's shape, the version of state whose other rows count (None: no row), and the changed rows.

    ``events`` has FOLDED. Raises IncompatibleSchemaChange if they cannot be folded over the version.
    """
    done = state.batch if state else 0
    require_one_key([*(v.schema for v in versions if v.batch > done), versions[-1].schema])
    shape = shape_over(state, versions)
    truncated_at = newest_truncate(events)
    folded = _fold(events, shape, truncated_at)
    if state is None:
        return shape, None, first_rows(folded, shape)
    if not shape.primary_key:
        # Truncates of a table without a key are in events only.
        return shape, state.version, first_rows(folded, shape)
    if truncated_at is not None:
        # All rows of state are older.
        return shape, None, first_rows(folded, shape)
    return shape, state.version, _completed(path, state, shape, folded)


def fold_over_rows(
    versions: Sequence[SchemaVersion], events: pa.Table, known: Shape | None, start: Position,
    rows_at_start: Callable[[pa.Array | None], pa.Table],
) -> tuple[Shape, pa.Table, pa.Table]:
    """Fold the events after ``start`` over a table's live rows at ``start``, which have the shape ``known``.

    ``events`` has FOLDED; ``rows_at_start`` returns the rows of some keys, or with None all. Returns the shape at the
    end, the rows at ``start`` that may differ, and the live rows of the same keys at the end. Raises
    IncompatibleSchemaChange if rows and events do not fit one shape.
    """
    recent = [version.schema for version in versions if version.since > start]
    require_one_key([*recent, versions[-1].schema])
    shape = shape_of([version.schema for version in versions])
    if known is not None:
        if known.primary_key != shape.primary_key:
            raise key_changed(shape.table)
        shape = widened_to_fit(shape, {column.name: column.type for column in known.columns})
    truncated_at = newest_truncate(events)
    folded = _fold(events, shape, truncated_at)
    schema = row_schema(shape)
    before = as_columns(rows_at_start(None if truncated_at else folded["_key"].combine_chunks()), schema)
    TooLargeToFold.require_fit(shape.table, "the rows that events change", before)
    # A key that a row had before is among the keys that changed.
    folded = supply_moved(folded, lambda _: before)
    match = match_keys(before["_key"], folded["_key"])
    fresh = np.ones(folded.num_rows, bool)
    fresh[match[match >= 0]] = False
    parts = [updated(before, Change(folded, shape, truncated_at), match),
             first_rows(folded.filter(pa.array(fresh)), shape)]
    after = pa.concat_tables([part.select(schema.names).cast(schema) for part in parts])
    return shape, before, after.filter(pc.invert(after["_deleted"]))


def fold_all(
    paths: Paths, versions: Sequence[SchemaVersion], events: pa.Table, batch: int
) -> tuple[Shape, pa.Table]:
    """Return a table's shape and rows from its events alone, which are all up to landing batch ``batch``.

    After an incompatible change of the schema, events count from the newest dump under the new one on. Raises
    IncompatibleSchemaChange if there was no such dump.
    """
    schemas = [version.schema for version in versions]
    whole = versions[first_compatible_version(schemas):]
    if len(whole) < len(versions):
        table = schemas[-1].table
        began = dumped_in(closed_windows(paths, table, batch), [v.schema for v in whole], whole[0].since)
        if began is None:
            raise IncompatibleSchemaChange(
                f"table {table}: its schema changed incompatibly, and no dump of it had ended at this point",
                next_step=REBUILD.format(table=table),
            )
        events = _since(events, whole, min(began, whole[0].since))
    shape = shape_of([version.schema for version in whole])
    return shape, first_rows(_fold(events, shape, newest_truncate(events)), shape)


def _fold(events: pa.Table, shape: Shape, truncated_at: Position | None) -> pa.Table:
    TooLargeToFold.require_fit(shape.table, "its events after state", events)
    return fold(events.select(NEEDED), shape, truncated_at)


def _since(events: pa.Table, versions: Sequence[SchemaVersion], since: Position) -> pa.Table:
    schemas = [version.schema for version in versions]
    ids = frozenset(schema.schema_id for schema in schemas)
    return Predicate(since=since, rows=KeyFilter(ids, schemas[-1].primary_key)).filter(events)


def _completed(path: str, state: StateVersion, shape: Shape, folded: pa.Table) -> pa.Table:
    """Supply the columns that no event carried from the state table's rows."""
    partial = pc.greater(pc.list_value_length(folded[UNKNOWN]), 0)
    if not pc.any(partial, min_count=0).as_py():
        return first_rows(folded, shape)
    lacking = folded.filter(partial)
    files = TableFiles(path, state.table)
    listed = files.files()
    lacking = supply_moved(lacking, lambda keys: read_rows(path, files.columns, listed, shape, keys))
    known = read_rows(path, files.columns, listed, shape, lacking)
    change = Change(lacking, shape)
    match = match_keys(known["_key"], lacking["_key"])
    fresh = np.ones(lacking.num_rows, bool)
    fresh[match[match >= 0]] = False
    schema = row_schema(shape)
    parts = [
        first_rows(folded.filter(pc.invert(partial)), shape),
        first_rows(lacking.filter(pa.array(fresh)), shape),
        updated(known, change, match),
    ]
    return pa.concat_tables([part.select(schema.names).cast(schema) for part in parts])
