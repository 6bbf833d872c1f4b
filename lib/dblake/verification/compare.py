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
from dblake.state.fold import NEEDED, POSITION, fold, name_masks
from dblake.state.shape import Shape
from dblake.verification.ledger import Differences

Mask = np.ndarray


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
    places = pc.fill_null(pc.index_in(_chunk(source["_key"]), value_set=_chunk(state["_key"])), -1).to_numpy()
    missing, both = places < 0, np.flatnonzero(places >= 0)
    ours, theirs = source.take(pa.array(both)).combine_chunks(), state.take(pa.array(places[both])).combine_chunks()
    lossy = [name_masks(_chunk(rows["_lossy"]), len(both)) if len(both) else {} for rows in (ours, theirs)]
    none, wrong, columns = np.zeros(len(both), bool), np.zeros(len(both), bool), dict[str, int]()
    for column in shape.current:
        name, own = column.name, _chunk(ours[column.name])
        other = _chunk(theirs[name]).cast(own.type) if name in theirs.column_names else pa.nulls(len(both), own.type)
        differ = differs(own, other) | (lossy[0].get(name, none) != lossy[1].get(name, none))
        if differ.any():
            columns[name] = int(differ.sum())
            wrong |= differ
    keys = _chunk(source["_key"])
    return Differences(
        missing=keys.filter(pa.array(missing)).to_pylist(),
        different=keys.take(pa.array(both[wrong])).to_pylist(), columns=columns,
    )


def differs(left: pa.Array, right: pa.Array) -> Mask:
    """Return where two arrays of one type and length differ. NULL equals NULL, NaN equals NaN, -0.0 is not 0.0."""
    valid = [_mask(pc.is_valid(side)) for side in (left, right)]
    both = valid[0] & valid[1]
    if pa.types.is_list(left.type):
        unequal = _lists_differ(left, right)
    elif pa.types.is_floating(left.type):
        unequal = _floats_differ(left, right)
    else:
        unequal = _mask(pc.fill_null(pc.not_equal(left, right), False))
    return np.asarray((valid[0] != valid[1]) | (both & unequal))


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


def _floats_differ(left: pa.Array, right: pa.Array) -> Mask:
    a, b = (pc.fill_null(side, 0.0).to_numpy() for side in (left, right))
    bits = np.dtype(f"i{a.dtype.itemsize}")
    return np.asarray((a.view(bits) != b.view(bits)) & ~(np.isnan(a) & np.isnan(b)))


def _lists_differ(left: pa.Array, right: pa.Array) -> Mask:
    """Compare lists by their lengths, then their elements where those agree."""
    lengths = [pc.fill_null(pc.list_value_length(side), 0).to_numpy() for side in (left, right)]
    unequal = lengths[0] != lengths[1]
    alike = pa.array(~unequal)
    elements = [side.filter(alike).flatten() for side in (left, right)]
    owner = np.repeat(np.flatnonzero(~unequal), lengths[0][~unequal])
    if len(elements[0]) == len(elements[1]) == len(owner):
        unequal = unequal.copy()
        unequal[owner[differs(*elements)]] = True
    return np.asarray(unequal)


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(bool)


def _chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined
