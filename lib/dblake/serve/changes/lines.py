"""Changes between two points as records of the native format.

Place: after ``span`` and ``consolidate``; ``jobs.changes`` prints the lines. All consumers share the encoder. A
consolidated line has ``origin`` ``state``, the position of the newest event of the span, and both rows:
``before`` as of the span's start, ``after`` as of its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.changes.consolidate import consolidate
from dblake.serve.changes.differences import Differences
from dblake.serve.changes.span import Span
from dblake.serve.consume.event_rows import ROWS_AT_ONCE, EventBuilder
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import STATE, Event
from dblake.serve.consume.render import render_texts
from dblake.serve.consume.schemas import Schemas
from dblake.serve.outputs.native import NativeFormat


def encode_events(span: Span, tables: Sequence[str]) -> Iterator[bytes]:
    """Yield the events of the span in order; ``tables`` are globs, none for all tables."""
    selection = Selection(list(tables) or ["*.*"])
    schemas = Schemas(span.paths)
    builder, encode = EventBuilder(span.paths.source, selection, schemas.get, {}), NativeFormat().encode
    for part in span.log.read_ordered(span.selection()):
        chosen = [name for name in pc.unique(part["table"]).to_pylist() if selection.has_table(name)]
        rows = schemas.recorded(part.filter(pc.is_in(part["table"], pa.array(chosen, pa.string()))))
        lsn = rows["lsn"]
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            end = start + ROWS_AT_ONCE
            # Parts end between transactions, slices anywhere.
            is_end = end >= rows.num_rows or lsn[end - 1] != lsn[end]
            yield from map(encode, builder.build(rows.slice(start, ROWS_AT_ONCE), is_end))


def encode_consolidated(span: Span, tables: Sequence[str]) -> Iterator[bytes]:
    """Yield one line for each key that differs, table by table; ``tables`` are globs, none for all tables."""
    selection = Selection(list(tables) or ["*.*"])
    encode = NativeFormat().encode
    for table in filter(selection.has_table, span.after.tables):
        for event in _events(span, consolidate(span, table)):
            yield encode(event)


def _events(span: Span, differences: Differences) -> Iterator[Event]:
    later = span.after.schemas(differences.table)[-1].schema
    existed = span.before and differences.table in span.before.tables
    earlier = span.before.schemas(differences.table)[-1].schema if span.before and existed else later
    before, after = _texts(differences.before, earlier), _texts(differences.after, later)
    for start in range(0, len(differences.op), ROWS_AT_ONCE):
        ops = differences.op.slice(start, ROWS_AT_ONCE).to_pylist()
        olds, news = before.slice(start, ROWS_AT_ONCE).to_pylist(), after.slice(start, ROWS_AT_ONCE).to_pylist()
        if not olds:
            olds = [None] * len(ops)
        for op, old, new in zip(ops, olds, news, strict=True):
            before_row, after_row = None if op == Op.CREATE else old, None if op == Op.DELETE else new
            yield _event(span, differences, op, before_row, after_row, later)


def _event(
    span: Span, differences: Differences, op: str, before: dict[str, str | None] | None,
    after: dict[str, str | None] | None, schema: TableSchema,
) -> Event:
    row = before if after is None else after
    assert row is not None, "a line has a row"
    key = {name: row[name] for name in differences.keys} if differences.keys else None
    position: Position = span.position
    return Event(span.paths.source, differences.table, op, position, key, before, after, None, None, False, STATE,
                 schema.schema_id, schema)


def _texts(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Return typed rows as the source's texts."""
    types = {column.name: column.type for column in schema.columns}
    columns = [render_texts(types[name], rows[name]) for name in rows.column_names if name in types]
    return pa.table(columns, names=[name for name in rows.column_names if name in types])
