"""Compare a chunk's rows with state's: functions from Arrow to Arrow, without loops over rows.

Both sides come from canonical text through the fold's own typing (``state.fold``), so equal text is equal here, and
text that state's type cannot hold is compared as that fact, by its name in ``_lossy``. A column that state lacks a
value for (named in ``_missing``) is NULL there, and different if the source has a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.columns import PARTIAL
from dblake.state.arrays import join_chunks
from dblake.state.fold import NEEDED, POSITION, fold, name_masks
from dblake.state.shape import Shape
from dblake.verification.arrays import differs
from dblake.verification.ledger import Differences


def typed_rows(decoded: pa.Table, shape: Shape) -> pa.Table:
    """Return a chunk's DECODED rows as state would hold them: ``_key``, ``_lossy`` and the shape's columns."""
    events = decoded
    for name in (*POSITION, "batch"):
        # A chunk's row has no position of its own; the fold needs one.
        place = events.schema.get_field_index(name)
        events = events.set_column(place, name, pa.array(np.arange(events.num_rows, dtype=np.int64)))
    partial = events.schema.get_field_index(PARTIAL)
    events = events.set_column(partial, PARTIAL, pa.repeat(False, events.num_rows))
    return fold(events.select(list(NEEDED)), shape, None)


def compare_rows(source: pa.Table, state: pa.Table, shape: Shape) -> Differences:
    """Return the rows of ``source`` that state lacks, and those that differ.

    ``source`` is the result of ``typed_rows``, ``state`` has the live rows of state, with unique ``_key``, ``_lossy``
    and those columns of the shape that the state table has.
    """
    keys = join_chunks(source["_key"])
    places = pc.fill_null(pc.index_in(keys, value_set=join_chunks(state["_key"])), -1).to_numpy()
    missing, both = places < 0, np.flatnonzero(places >= 0)
    ours, theirs = source.take(pa.array(both)).combine_chunks(), state.take(pa.array(places[both])).combine_chunks()
    lossy = [name_masks(join_chunks(rows["_lossy"]), len(both)) if len(both) else {} for rows in (ours, theirs)]
    none, wrong, columns = np.zeros(len(both), bool), np.zeros(len(both), bool), dict[str, int]()
    for column in shape.current:
        name, own = column.name, join_chunks(ours[column.name])
        has_column = name in theirs.column_names
        other = join_chunks(theirs[name]).cast(own.type) if has_column else pa.nulls(len(both), own.type)
        differ = differs(own, other) | (lossy[0].get(name, none) != lossy[1].get(name, none))
        if differ.any():
            columns[name] = int(differ.sum())
            wrong |= differ
    return Differences(
        missing=keys.filter(pa.array(missing)).to_pylist(),
        different=keys.take(pa.array(both[wrong])).to_pylist(), columns=columns,
    )


def without(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the rows whose ``_key`` is not among some keys."""
    if not len(keys):
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["_key"], value_set=keys)))


def absent_keys(state_keys: pa.Array, returned: Sequence[pa.Array], touched: pa.Array) -> pa.Array:
    """Return the keys of state that no chunk returned and no event touched."""
    for present in (touched, *returned):
        if len(present):
            state_keys = state_keys.filter(pc.invert(pc.is_in(state_keys, value_set=present)))
    return state_keys
