"""Consolidated changes of a table: each key whose row differs between two points, with both rows.

Place: after ``span``. Two ways lead to the same result; the estimated cost decides:

- Fold the events of the span over the rows that their keys had at its start.
- Compare the table's rows at both ends.

Guarantee: a key is reported exactly if its row exists at one end only, or if a column of the later schema differs. A
column that did not exist yet counts as NULL. Of a value that state cannot hold (``_lossy``) every new version counts as
a difference. A table without a key has no rows to compare: each row created in the span is reported.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblake.base.core.arrays import take_rows
from dblake.base.core.errors import StateError
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.serve.changes.comparison import compare_ends
from dblake.serve.changes.differences import Differences, Way
from dblake.serve.changes.span import Span
from dblake.serve.read.fold import FOLDED, fold_over_rows
from dblake.serve.read.reading import TableReading
from dblake.serve.read.rows import read_state_rows
from dblake.transform.state.fold import NEEDED, fold
from dblake.transform.state.moved import row_schema
from dblake.transform.state.shape import shape_of
from dblake.transform.state.upsert import first_rows


def consolidate(span: Span, table: str, way: Way | None = None) -> Differences:
    """Return a table's consolidated changes, computed in the cheaper way unless ``way`` is given."""
    if way is None:
        costs = span.estimate_costs(table)
        way = Way.EVENTS if costs.events <= costs.states else Way.STATES
    before = span.before.table(table) if span.before and table in span.before.tables else None
    if not span.after.schemas(table)[-1].schema.primary_key:
        return _created(span, table)
    if way is Way.EVENTS:
        try:
            return _from_events(span, table, before)
        except StateError:
            # Rows and events that do not fit one shape are compared as they are.
            way = Way.STATES
    after = span.after.table(table)
    return compare_ends(table, after.shape, before.shape if before else None,
                    read_state_rows(before) if before else iter(()), read_state_rows(after), way)


def _from_events(span: Span, table: str, before: TableReading | None) -> Differences:
    events = span.log.read_all(span.selection(table), FOLDED)
    versions = span.after.schemas(table)
    shape_before = before.shape if before else None

    def rows_of(keys: pa.Array | None) -> pa.Table:
        none = row_schema(shape_before or shape_of([version.schema for version in versions])).empty_table()
        return pa.concat_tables([none, *(read_state_rows(before, keys) if before else ())])

    shape, earlier, later = fold_over_rows(versions, events, shape_before, span.start, rows_of)
    return compare_ends(table, shape, shape_before, iter([earlier]), iter([later]), Way.EVENTS)


def _created(span: Span, table: str) -> Differences:
    """Return the rows that a table without a key got in the span."""
    events = span.log.read_all(span.selection(table), FOLDED)
    shape = shape_of([version.schema for version in span.after.schemas(table)])
    rows = first_rows(fold(events.select(NEEDED), shape, None), shape)
    position = [rows[f"_{name}"].to_numpy() for name in Position.COLUMNS]
    rows = take_rows(rows, np.lexsort(position[::-1])).select([column.name for column in shape.current])
    op = pa.chunked_array([[Op.CREATE] * rows.num_rows], pa.string())
    return Differences(table, (), op, rows.schema.empty_table(), rows, Way.EVENTS)
