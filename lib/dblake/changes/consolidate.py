"""Consolidated changes of a table: each key whose row differs between two points, with both rows.

Place: after ``span``. Two ways lead to the same result: the events of the span, folded over the rows that their keys
had at its start; or the difference of the table's rows at both ends. The estimated cost decides. Guarantee: a key is
reported exactly if its row exists at one end only, or if a column of the later schema differs, where a column that did
not exist yet counts as NULL. Of a value that state cannot hold (``_lossy``) every new version counts as a difference.
A table without a key has no rows to compare: each row created in the span is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dblake.changes.span import Span
from dblake.core.errors import StateError
from dblake.read.fold import FOLDED, as_columns, fold_over_rows, row_schema
from dblake.read.reading import TableReading
from dblake.read.rows import read_state_rows
from dblake.state.fold import NEEDED, POSITION, fold
from dblake.state.shape import Shape, shape_of
from dblake.state.upsert import first_rows

_OWN = ("_key", "_incarnation", "_lsn", "_seq", "_lossy")


class Way(StrEnum):
    """How consolidated changes are computed."""

    EVENTS = "events"
    STATES = "states"


@dataclass(frozen=True)
class Differences:
    """Differing rows of one table, in order of ``_key``.

    ``op`` (c, u or d), ``before`` and ``after`` have the same number of rows; ``before`` is all NULL where a row was
    inserted, ``after`` where one was deleted. ``before`` has the columns of the schema at the span's start, ``after``
    those at its end.
    """

    table: str
    keys: tuple[str, ...]
    op: pa.ChunkedArray
    before: pa.Table
    after: pa.Table
    way: Way


def consolidate(span: Span, table: str, way: Way | None = None) -> Differences:
    """Return a table's consolidated changes, computed the given or else the cheaper way."""
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
    return _compare(table, after.shape, before.shape if before else None,
                    read_state_rows(before) if before else iter(()), read_state_rows(after), way)



def _from_events(span: Span, table: str, before: TableReading | None) -> Differences:
    events = span.log.read_all(span.wanted(table), FOLDED)
    versions = span.after.schemas(table)
    known = before.shape if before else None

    def rows_of(keys: pa.Array | None) -> pa.Table:
        none = row_schema(known or shape_of([version.schema for version in versions])).empty_table()
        return pa.concat_tables([none, *(read_state_rows(before, keys) if before else ())])

    shape, earlier, later = fold_over_rows(versions, events, known, span.start, rows_of)
    return _compare(table, shape, known, iter([earlier]), iter([later]), Way.EVENTS)


def _created(span: Span, table: str) -> Differences:
    """Return the rows that a table without a key got in the span."""
    events = span.log.read_all(span.wanted(table), FOLDED)
    shape = shape_of([version.schema for version in span.after.schemas(table)])
    rows = first_rows(fold(events.select(NEEDED), shape, None), shape)
    at = [rows[f"_{name}"].to_numpy() for name in POSITION]
    rows = rows.take(pa.array(np.lexsort(at[::-1]))).select([column.name for column in shape.current])
    op = pa.chunked_array([["c"] * rows.num_rows], pa.string())
    return Differences(table, (), op, rows.schema.empty_table(), rows, Way.EVENTS)


def _compare(
    table: str, shape: Shape, earlier: Shape | None, before: Iterator[pa.Table], after: Iterator[pa.Table], way: Way
) -> Differences:
    """Join the rows of both ends by key and return those that differ."""
    old = _schema(earlier or shape)
    new = _schema(shape)
    old_names = [name for name in old.names if name not in _OWN]
    new_names = [name for name in new.names if name not in _OWN]
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("b", _reader(before, old))
        connection.register("a", _reader(after, new))
        columns = [f'b."{_quoted(name)}" AS b{n}' for n, name in enumerate(old_names)]
        columns += [f'a."{_quoted(name)}" AS a{n}' for n, name in enumerate(new_names)]
        differs = " OR ".join([_lossy_differs(), *(_differs(old, new, name) for name in new_names)])
        found = connection.sql(
            f"SELECT CASE WHEN b._key IS NULL THEN 'c' WHEN a._key IS NULL THEN 'd' ELSE 'u' END AS op, "
            f"coalesce(a._key, b._key) AS k, {', '.join(columns)} FROM b FULL OUTER JOIN a ON b._key = a._key "
            f"WHERE b._key IS NULL OR a._key IS NULL OR {differs} ORDER BY k"
        ).to_arrow_table()
    finally:
        connection.close()
    return Differences(
        table, shape.primary_key, found["op"],
        _renamed(found, "b", old_names, old), _renamed(found, "a", new_names, new), way,
    )


def _reader(parts: Iterator[pa.Table], schema: pa.Schema) -> pa.RecordBatchReader:
    batches = (batch for part in parts for batch in as_columns(part, schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _schema(shape: Shape) -> pa.Schema:
    names = [*_OWN, *(column.name for column in shape.current)]
    schema = row_schema(shape)
    return pa.schema([schema.field(name) for name in names])


def _differs(old: pa.Schema, new: pa.Schema, name: str) -> str:
    column = f'"{_quoted(name)}"'
    if name not in old.names:
        return f"a.{column} IS NOT NULL"
    kinds = {old.field(name).type, new.field(name).type}
    if len(kinds) > 1 and any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in kinds):
        return f"CAST(a.{column} AS VARCHAR) IS DISTINCT FROM CAST(b.{column} AS VARCHAR)"
    return f"a.{column} IS DISTINCT FROM b.{column}"


def _lossy_differs() -> str:
    moved = " OR ".join(f"a._{name} <> b._{name}" for name in POSITION)
    return f"(len(a._lossy) + len(b._lossy) > 0 AND ({moved}))"


def _renamed(found: pa.Table, prefix: str, names: list[str], schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [found[f"{prefix}{n}"].cast(schema.field(name).type) for n, name in enumerate(names)]
    return pa.table(columns, names=names)


def _quoted(name: str) -> str:
    return name.replace('"', '""')
