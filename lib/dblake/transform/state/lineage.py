"""Follow rows through changes of their keys: which events, of several keys, are about one row.

Place: below ``fold``, for tables with partial images of key changes. Guarantee: a create that a key change made, and
that lacks columns, continues the row which the newest delete of its old key ended; so do chains of such changes. Any
other create, and every delete, begins a row. Values are left to ``fold``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class RowEvents:
    """What is to be known of events: their key's code, their ``order`` by position, and which begin or end rows.

    ``names`` are the keys by code. ``moved`` marks partial creates of key changes, ``old_keys`` has their old keys.
    """

    codes: np.ndarray
    names: pa.Array
    order: np.ndarray
    begins: np.ndarray
    deleted: np.ndarray
    moved: np.ndarray
    old_keys: pa.Array


@dataclass(frozen=True)
class Lines:
    """The row that each event is about, by number: ``of_event``. ``continues`` marks the creates that begin none.

    ``source`` is, for each row, the code of the key that it had before the first event; -1 where an event begins it.
    """

    of_event: np.ndarray
    continues: np.ndarray
    source: np.ndarray


def trace(events: RowEvents) -> Lines:
    """Return the rows of events."""
    count, keys = len(events.codes), len(events.names)
    by_key = events.order[np.argsort(events.codes[events.order], kind="stable")]
    codes = events.codes[by_key]
    is_first = np.append(True, codes[1:] != codes[:-1])
    starts = is_first | events.begins[by_key]
    # A key's row from before the first event is a row of its own, numbered after all others.
    rows = np.cumsum(starts) - 1
    source = np.full(int(starts.sum()) + keys, -1, np.int64)
    source[rows[is_first & ~events.begins[by_key]]] = codes[is_first & ~events.begins[by_key]]
    source[len(source) - keys:] = np.arange(keys)

    rank = np.empty(count, np.int64)
    rank[events.order] = np.arange(count)
    ends = np.flatnonzero(events.deleted[by_key])
    creates = np.flatnonzero(events.moved[by_key])
    old = pc.fill_null(pc.index_in(events.old_keys.take(pa.array(by_key[creates])), value_set=events.names), -1)
    old_codes = old.to_numpy().astype(np.int64)
    ended = codes[ends] * (count + 1) + rank[by_key[ends]]
    nearest = np.searchsorted(ended, old_codes * (count + 1) + rank[by_key[creates]]) - 1
    is_found = (old_codes >= 0) & (nearest >= 0)
    is_found[is_found] = codes[ends[nearest[is_found]]] == old_codes[is_found]
    creates, at = creates[is_found], ends[nearest[is_found]]
    parent = np.arange(len(source))
    parent[rows[creates]] = np.where(is_first[at], len(source) - keys + codes[at], rows[at - 1])
    while (parent[parent] != parent).any():
        parent = parent[parent]
    of_event, continues = np.empty(count, np.int64), np.zeros(count, bool)
    of_event[by_key] = parent[rows]
    continues[by_key[creates]] = True
    return Lines(of_event, continues, source)
