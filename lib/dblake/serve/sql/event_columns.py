"""Events of one table → typed Arrow columns: the row that each event leaves, and facts about the event.

Place: below ``event_batches``. Values have the types that state has, converted by the same code. Guarantee:
``_missing`` names every column of a row whose value is not known, ``_lossy`` every column whose value its type cannot
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.model import STATE, Event
from dblake.transform.spark.types import spark_type
from dblake.transform.state.fold import key_texts
from dblake.transform.state.values import arrow_type, read_texts

EVENT_COLUMNS = {
    "_op": "STRING", "_origin": "STRING", "_txid": "STRING", "_committed_at": "TIMESTAMP", "_incarnation": "BIGINT",
    "_lsn": "BIGINT", "_seq": "BIGINT", "_lossy": "ARRAY<STRING>", "_missing": "ARRAY<STRING>",
}
"""What a stream has beside the table's columns, with Spark's types."""

FindRows = Callable[[pa.Array], pa.Table]
"""Returns the rows of some ``_key`` values as a state table has them."""


def stream_types(schema: TableSchema) -> dict[str, str]:
    """Return the columns of a stream with Spark's types: the table's, then EVENT_COLUMNS."""
    return {column.name: spark_type(column.type) for column in schema.columns} | EVENT_COLUMNS


def as_rows(events: Sequence[Event], schema: TableSchema, find_rows: FindRows) -> pa.Table:
    """Return events, none of them a truncate, with the columns of ``stream_types``.

    A delete has its key and what ``before`` holds. Columns that an update did not carry come from ``find_rows``.
    """
    images = [{**(e.before or {}), **(e.key or {})} if e.op == Op.DELETE else e.after or {} for e in events]
    facts = _facts(events)
    facts["_lossy"], facts["_missing"] = [[] for _ in events], [[] for _ in events]
    incomplete = _incomplete_rows(events, images, schema)
    existing = _Existing(events, incomplete, schema, find_rows) if len(incomplete) else None
    columns: dict[str, pa.Array] = {}
    for column in schema.columns:
        name, kind = column.name, spark_type(column.type)
        texts = pa.array([image.get(name) for image in images], pa.string())
        values = read_texts(kind, texts)
        _note(facts["_lossy"], name, pc.and_(pc.is_valid(texts), pc.is_null(values)))
        absent = np.array([name not in image and e.op != Op.DELETE for image, e in zip(images, events, strict=True)])
        if absent.any():
            if existing is not None:
                values, absent = existing.fill(name, values, absent)
            _note(facts["_missing"], name, absent)
        columns[name] = values
    return _as_table(columns | facts, schema)


def as_deletes(rows: pa.Table, truncate: Event, schema: TableSchema) -> pa.Table:
    """Return a truncate as one event per row that it removes, with the row's key; ``rows`` come from state."""
    count = rows.num_rows
    keys = {
        name: rows[name].cast(arrow_type(kind)) if name in schema.primary_key else pa.nulls(count, arrow_type(kind))
        for name, kind in stream_types(schema).items() if name not in EVENT_COLUMNS
    }
    facts = {name: value * count for name, value in _facts([truncate]).items()}
    return _as_table(keys | facts | {"_lossy": [[]] * count, "_missing": [[]] * count}, schema)


def _facts(events: Sequence[Event]) -> dict[str, list[Any]]:
    positions = [event.position for event in events]
    return {
        "_op": [event.op for event in events], "_origin": [event.origin for event in events],
        "_txid": [event.txid for event in events], "_committed_at": [event.committed_at for event in events],
        "_incarnation": [one.incarnation for one in positions], "_lsn": [one.lsn for one in positions],
        "_seq": [one.seq for one in positions],
    }


def _incomplete_rows(events: Sequence[Event], images: Sequence[Any], schema: TableSchema) -> np.ndarray:
    """Return which events leave a row without carrying all of its columns. A row of state has all that are known."""
    names = frozenset(schema.names)
    return np.array([
        n for n, (event, image) in enumerate(zip(events, images, strict=True))
        if event.op != Op.DELETE and event.origin != STATE and event.key is not None and not names <= image.keys()
    ], np.int64)


class _Existing:
    """The rows of some events' keys in the lake, by the events' numbers."""

    def __init__(self, events: Sequence[Event], incomplete: np.ndarray, schema: TableSchema, find: FindRows) -> None:
        keys = pa.array([list((events[n].key or {}).items()) for n in incomplete], pa.map_(pa.string(), pa.string()))
        texts = key_texts(keys, schema.primary_key)
        self._rows = find(pc.unique(texts)).combine_chunks()
        found = pc.fill_null(pc.index_in(texts, self._rows["_key"].combine_chunks()), -1)
        self._at = np.full(len(events), -1, np.int64)
        self._at[incomplete] = found.to_numpy()

    def fill(self, name: str, values: pa.Array, absent: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """Return the values, filled from the rows where they are absent, and where they are still absent."""
        if name not in self._rows.column_names:
            return values, absent
        wanted = absent & (self._at >= 0)
        places = pa.array(np.where(wanted, self._at, 0), mask=~wanted)
        taken = self._rows[name].combine_chunks().cast(values.type).take(places)
        unknown = np.array([name in (missing or ()) for missing in self._rows["_missing"].to_pylist()], bool)
        known = wanted & ~np.append(unknown, False)[np.where(wanted, self._at, len(unknown))]
        return pc.if_else(pa.array(known), taken, values), absent & ~known


def _note(lists: list[list[str]], name: str, where: Any) -> None:
    for number in np.flatnonzero(np.asarray(where)):
        lists[number].append(name)


def _as_table(columns: dict[str, Any], schema: TableSchema) -> pa.Table:
    types = {name: arrow_type(kind) for name, kind in stream_types(schema).items()}
    return pa.table({
        name: columns[name] if isinstance(columns[name], pa.Array | pa.ChunkedArray) else pa.array(columns[name], kind)
        for name, kind in types.items()
    })
