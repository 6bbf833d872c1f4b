"""Rows whose key changed: the columns that no event carried, from the state table's row of the old key.

Place: between ``fold``, which names the old key, and whatever merges folded rows. Guarantee: afterwards no folded row
needs another key's row; a column is missing if the old key's row lacks its value. Rows are read as of the version that
the events follow, so the caller reads before it merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.transform.state.files import Columns, FileReader, OrderedValues, StateFile, may_hold, ordered_keys
from dblake.transform.state.fold import MOVED_FROM, UNKNOWN, name_lists, name_masks
from dblake.transform.state.shape import OWN, Shape
from dblake.transform.state.upsert import match_keys
from dblake.transform.state.values import arrow_type

ReadRows = Callable[[pa.Table], pa.Table]
"""Returns the rows, with the columns of ``row_schema``, whose ``_key`` is one of the ``_key`` given."""


def supply_moved(folded: pa.Table, read_rows: ReadRows) -> pa.Table:
    """Give folded rows the columns that only their old key's row has."""
    moved = pc.and_(pc.is_valid(folded[MOVED_FROM]), pc.greater(pc.list_value_length(folded[UNKNOWN]), 0))
    if not pc.any(moved, min_count=0).as_py():
        return folded
    folded, count = folded.combine_chunks(), folded.num_rows
    is_moved = moved.to_numpy().astype(bool)
    old_keys = pc.unique(folded.filter(moved)[MOVED_FROM])
    old_rows = read_rows(pa.table({"_key": old_keys})).combine_chunks()
    old_rows = old_rows.filter(pc.invert(old_rows["_deleted"]))
    match = np.where(is_moved, match_keys(folded[MOVED_FROM], old_rows["_key"]), -1)
    unknown = name_masks(join_chunks(folded[UNKNOWN]), count)
    masks = {name: name_masks(join_chunks(folded[name]), count) for name in ("_lossy", "_missing")}
    theirs = {name: name_masks(join_chunks(old_rows[name]), old_rows.num_rows) for name in masks}
    for name, mask in unknown.items():
        lacking = mask & is_moved
        taken = lacking & (match >= 0)
        for kind, named in masks.items():
            inherited = np.append(theirs[kind].get(name, np.zeros(old_rows.num_rows, bool)), kind == "_missing")[match]
            named[name] = np.where(lacking, inherited, named.get(name, np.zeros(count, bool)))
        source = np.where(taken, count + match, np.arange(count))
        values = pa.concat_arrays([join_chunks(folded[name]), join_chunks(old_rows[name])]).take(pa.array(source))
        folded = folded.set_column(folded.schema.get_field_index(name), folded.schema.field(name), values)
    masks[UNKNOWN] = {name: mask & ~is_moved for name, mask in unknown.items()}
    for name, lists in masks.items():
        column = name_lists(lists, count)
        folded = folded.set_column(folded.schema.get_field_index(name), folded.schema.field(name), column)
    return folded


def read_rows(path: str, columns: Columns, files: Iterable[StateFile], shape: Shape, keys: pa.Table) -> pa.Table:
    """Return a state table's rows whose ``_key`` is among ``keys``, with the columns and types of the shape.

    ``keys`` has ``_key``; its columns of the primary key that are whole numbers rule out files, too.
    """
    types = columns.types
    ordered = {name: OrderedValues(keys[name]) for name in ordered_keys(keys, shape.primary_key)}
    there = Columns(
        {name: types[name] for name in (*OWN, *(c.name for c in shape.columns)) if name in types}, columns.physical
    )
    schema = row_schema(shape)
    parts = [schema.empty_table()]
    for file in files:
        if not all(may_hold(file, name, values) for name, values in ordered.items()):
            continue
        with FileReader(path, there, file) as reader:
            for group in range(reader.groups):
                head = reader.read(group, ("_key",))
                match = match_keys(head["_key"], keys["_key"])
                if (match >= 0).any():
                    first = 0
                    for rows in reader.slices(group, known=head):
                        matching = rows.filter(pa.array(match[first:first + rows.num_rows] >= 0))
                        parts.append(as_columns(matching, schema))
                        first += rows.num_rows
    return pa.concat_tables(parts)


def as_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give rows the columns of a schema; those they lack are NULL."""
    there = set(rows.column_names)
    columns = [rows[f.name].cast(f.type) if f.name in there else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


def row_schema(shape: Shape) -> pa.Schema:
    """Return the Arrow schema of a state table of a shape."""
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in types.items()])
