"""Compare a chunk's rows with state's: functions from Arrow to Arrow, without loops over rows.

Both sides come from canonical text through the fold's own typing (``state.fold``), so equal text is equal here, and
text that state's type cannot hold is compared as that fact, by its name in ``_lossy``. A column that state lacks a
value for (named in ``_missing``) is NULL there, and different if the source has a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import JOINED_BYTES, join_chunks
from dblake.base.core.position import Position
from dblake.operate.verification.arrays import differs
from dblake.operate.verification.ledger import ChunkDifferences
from dblake.payloads.decode.columns import PARTIAL
from dblake.transform.state.fold import NEEDED, fold, name_masks
from dblake.transform.state.shape import Shape


def typed_rows(decoded: pa.Table, shape: Shape) -> pa.Table:
    """Return a chunk's DECODED rows as state would hold them: ``_key``, ``_lossy`` and the shape's columns.

    ``_seq`` is each row's number in its chunk.
    """
    events = decoded
    for name in (*Position.COLUMNS, "batch"):
        # A chunk's row has no position of its own but its number; the fold needs one.
        if name != "seq":
            place = events.schema.get_field_index(name)
            events = events.set_column(place, name, pa.repeat(pa.scalar(0, pa.int64()), events.num_rows))
    partial = events.schema.get_field_index(PARTIAL)
    events = events.set_column(partial, PARTIAL, pa.repeat(False, events.num_rows))
    return fold(events.select(list(NEEDED)), shape, None)


def align_state(keys: pa.ChunkedArray, state: pa.Table) -> pa.Table:
    """Return state's row for each key, in the keys' order, and one of NULLs where state has none.

    ``state`` has the live rows, with unique ``_key``. For many chunks at once: state's keys are hashed only once.
    """
    return state.take(join_chunks(pc.index_in(keys, value_set=join_chunks(state["_key"]))))


def compare_rows(source: pa.Table, state: pa.Table, shape: Shape) -> ChunkDifferences:
    """Return the rows of ``source`` that state lacks, and those that differ.

    ``source`` is the result of ``typed_rows``, ``state`` that of ``align_state`` for its keys: ``_key``, ``_lossy``
    and those columns of the shape that the state table has.
    """
    keys, missing = join_chunks(source["_key"]), join_chunks(pc.is_null(state["_key"])).to_numpy(zero_copy_only=False)
    both = np.flatnonzero(~missing)
    ours, theirs = (rows.take(pa.array(both)).combine_chunks() for rows in (source, state))
    lossy = [name_masks(join_chunks(rows["_lossy"]), len(both)) if len(both) else {} for rows in (ours, theirs)]
    none, wrong, columns = np.zeros(len(both), bool), np.zeros(len(both), bool), dict[str, int]()
    lossy_values = 0
    for column in shape.current:
        name, own = column.name, join_chunks(ours[column.name])
        has_column = name in theirs.column_names
        other = join_chunks(theirs[name]).cast(own.type) if has_column else pa.nulls(len(both), own.type)
        lost, theirs_lost = lossy[0].get(name, none), lossy[1].get(name, none)
        lossy_values += int((lost & theirs_lost).sum())
        differ = differs(own, other) | (lost != theirs_lost)
        if differ.any():
            columns[name] = int(differ.sum())
            wrong |= differ
    return ChunkDifferences(
        missing=keys.filter(pa.array(missing)).to_pylist(),
        different=keys.take(pa.array(both[wrong])).to_pylist(), columns=columns, lossy=lossy_values,
    )


def absent_keys(
    state_keys: pa.ChunkedArray | pa.Array, returned: Sequence[pa.Array], touched: pa.ChunkedArray
) -> pa.ChunkedArray | pa.Array:
    """Return the keys of state that no chunk returned and no event touched. All keys may be more than 2 GiB."""
    return without(state_keys, [*touched.chunks, *returned])


def without(keys: pa.ChunkedArray | pa.Array, others: Sequence[pa.Array]) -> pa.ChunkedArray | pa.Array:
    """Return the keys that are not among ``others``, which may be more than 2 GiB."""
    for present in _joined(others):
        keys = keys.filter(pc.invert(pc.is_in(keys, value_set=present)))
    return keys


def are_among(keys: pa.ChunkedArray, others: Sequence[pa.Array]) -> np.ndarray:
    """Return which keys are among ``others``, which may be more than 2 GiB."""
    found = np.zeros(len(keys), np.bool_)
    for present in _joined(others):
        found |= pc.is_in(keys, value_set=present).to_numpy()
    return found


def _joined(keys: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """Yield keys joined into arrays of bounded size: one of strings has at most 2 GiB."""
    parts, size = list[pa.Array](), 0
    for part in keys:
        if parts and size + part.nbytes > JOINED_BYTES:
            yield pa.concat_arrays(parts)
            parts, size = [], 0
        parts.append(part)
        size += part.nbytes
    if parts:
        yield pa.concat_arrays(parts)
