"""Keys of decoded rows as text, and what a window needs to know of the events that hold them.

Between decoding and the window rule: both the join of keys and the tasks that drop evicted rows compare keys in this
form, so it is made here only.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.payloads.decode.columns import AFTER, PARTIAL

CARRIED, KEY_TEXT, WHOLE = "carried", "key_text", "whole"


def key_text(keys: pa.MapArray) -> pa.StringArray:
    """Return keys of one table as strings that are equal exactly if the keys are; null where there is none.

    A single column's text is taken as is; of several, each follows its length, so that no two keys run together.
    """
    sizes = np.diff(keys.offsets.to_numpy())
    if (sizes == 1).all():
        return keys.items
    lengths = pc.cast(pc.binary_length(keys.items), pa.string())
    counted = pc.binary_join_element_wise(lengths, keys.items, ":")
    parts = pa.ListArray.from_arrays(keys.offsets, pc.if_else(_is_single(sizes), keys.items, counted))
    return pc.if_else(pa.array(sizes > 0), pc.binary_join(parts, ""), None)


def key_text_of(values: list[str]) -> str:
    """Return ``key_text`` of one key, given its columns' texts in key order."""
    return values[0] if len(values) == 1 else "".join(f"{len(value.encode())}:{value}" for value in values)


def carried_columns(rows: pa.RecordBatch) -> pa.ListArray:
    """Return the columns that each partial image carries; null for any other. ``rows`` are DECODED."""
    names = pa.list_(pa.string())
    partial = rows.column(PARTIAL)
    if not pc.any(partial).as_py():
        return pa.nulls(rows.num_rows, names)
    after = rows.column(AFTER)
    return pc.if_else(partial, pa.ListArray.from_arrays(after.offsets, after.keys, type=names), None)


def _is_single(sizes: np.ndarray) -> pa.BooleanArray:
    """For each key column whether it is its key's only one."""
    return pa.array(np.repeat(sizes == 1, sizes))
