"""Follow chunk rows whose key changes inside their window, to the key that they have at its end.

Place: beside the joins of keys, which call ``follow`` with the events of whole windows. A row that moves to another key
is evicted, but may hold the only copy of a column: unchanged TOAST values, minimal row images. Guarantee: what is
returned for a key is about the row that the chunk read. A partial create that a key change made continues the row of
its old key, also in chains and in one transaction. A whole image has all that a fill could supply.

Several rows may have one key in a window. The chunk read the row that its snapshot saw last, because transactions that
change one key become visible in the order of the log. Without a snapshot, such keys are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.landing.columns import CHUNK_ID, LSN, SEQ
from dblake.payloads.decode.columns import DECODED, OP
from dblake.payloads.decode.row_keys import CARRIED, KEY_TEXT

IS_SEEN, MOVED_TO, OLD_KEY_TEXT = "is_seen", "moved_to", "old_key_text"

_TEXTS = pa.list_(pa.string())
#: An event of a window. ``chunk_id`` is the window's number, ``carried`` is null unless the image is partial. A partial
#: create of a key change has the values of its key and the old key's text. ``is_seen`` is whether the snapshot of the
#: window's chunk saw the event, false without a snapshot.
ROW_EVENTS = pa.schema([
    DECODED.field(CHUNK_ID), *(DECODED.field(name) for name in (LSN, SEQ, OP)), pa.field(KEY_TEXT, pa.string()),
    pa.field(CARRIED, _TEXTS), pa.field(OLD_KEY_TEXT, pa.string()), pa.field(MOVED_TO, _TEXTS),
    pa.field(IS_SEEN, pa.bool_()),
])
#: A key that the chunk returned, if it read this row: the row's key at the end of the window, ``moved_to``, in key
#: order, and the columns that its events carried.
FOLLOWED = pa.schema([
    pa.field(CHUNK_ID, pa.string()), pa.field(KEY_TEXT, pa.string()), pa.field(CARRIED, _TEXTS),
    pa.field(MOVED_TO, _TEXTS),
])

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def follow(events: pa.Table, with_snapshot: Collection[str]) -> pa.Table:
    """Return FOLLOWED rows: of keys that an event deletes, whose rows are there at the end of the window.

    ``events`` are ROW_EVENTS rows of any windows: of each window all that concern keys which key changes connect.
    ``with_snapshot`` are the numbers of the windows whose chunks recorded a snapshot.
    """
    events = events.filter(pc.is_valid(events[KEY_TEXT])).combine_chunks()
    if not events.num_rows:
        return FOLLOWED.empty_table()
    keys = window_keys(events[CHUNK_ID], events[KEY_TEXT]).dictionary_encode()
    names, codes = keys.dictionary, keys.indices.to_numpy().astype(np.int64)
    order = np.lexsort((events[SEQ].to_numpy(), events[LSN].to_numpy(), codes))
    events, codes = events.take(pa.array(order)), codes[order]
    spans = _Spans.of(events, codes, names)
    first, last = spans.rows()
    # What happened to a row, by the number of its first span.
    is_whole = np.zeros(len(first), np.bool_)
    is_whole[first[spans.is_whole]] = True
    is_there = ~is_whole & ~spans.is_gone[last] & (spans.created_by[last] >= 0)
    has_snapshot = pc.is_in(events[CHUNK_ID], pa.array(sorted(with_snapshot), pa.string())).to_numpy()
    read = np.where(_by_key(codes, has_snapshot), spans.rows_seen(first, codes, events), spans.only_rows(first))
    read[~_by_key(codes, pc.equal(events[OP], Op.DELETE).to_numpy())] = -1
    left = np.flatnonzero((read >= 0) & is_there[read])
    of_key, created_by = np.searchsorted(codes, left), spans.created_by[last[read[left]]]
    return pa.table({
        **{name: events[name].take(pa.array(of_key)) for name in (CHUNK_ID, KEY_TEXT)},
        CARRIED: _carried(events, first[spans.of_event], read[left]),
        MOVED_TO: events[MOVED_TO].take(pa.array(created_by)),
    }, schema=FOLLOWED)


def window_keys(windows: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.Array:
    """Return one text for each window's number and key."""
    return join_chunks(pc.binary_join_element_wise(windows.cast(pa.string()), texts, ":"))


@dataclass(frozen=True)
class _Spans:
    """The times that one row has one key in a window, ordered by key and position.

    ``code`` is the key's. ``is_open`` is true if the row had the key before the first event, ``is_whole`` if an event
    has the row whole, ``is_gone`` if a delete ends the row. ``successor`` is the span that continues the row,
    ``created_by`` the event of the key change that began the span; -1 for none. ``of_event`` is each event's span.
    """

    code: Codes
    is_open: Mask
    is_whole: Mask
    is_gone: Mask
    successor: Codes
    created_by: Codes
    of_event: Codes

    @classmethod
    def of(cls, events: pa.Table, codes: Codes, names: pa.Array) -> _Spans:
        """Divide events that are ordered by key and position. ``names`` are the keys by code."""
        deleted, created = (pc.equal(events[OP], op).to_numpy() for op in (Op.DELETE, Op.CREATE))
        is_first = np.append(True, codes[1:] != codes[:-1])
        starts = is_first | created | np.append(False, deleted[:-1])
        of_event, begins = np.cumsum(starts) - 1, np.flatnonzero(starts)
        ends = np.append(begins[1:], len(codes)) - 1
        is_whole = np.zeros(len(begins), np.bool_)
        is_whole[of_event[pc.is_null(events[CARRIED]).to_numpy() & ~deleted]] = True
        moves, ended = _moves(events, codes, names, np.flatnonzero(deleted))
        successor, created_by = np.full(len(begins), -1, np.int64), np.full(len(begins), -1, np.int64)
        successor[of_event[ended]], created_by[of_event[moves]] = of_event[moves], moves
        return cls(
            codes[begins], is_first[begins] & ~created[begins], is_whole, deleted[ends] & (successor < 0), successor,
            created_by, of_event,
        )

    def rows(self) -> tuple[Codes, Codes]:
        """Return the first and the last span of each span's row."""
        every, has_next = np.arange(len(self.code)), self.successor >= 0
        first, last = every.copy(), np.where(has_next, self.successor, every)
        first[self.successor[has_next]] = every[has_next]
        for spans in (first, last):
            while (spans[spans] != spans).any():
                spans[:] = spans[spans]
        return first, last

    def only_rows(self, first: Codes) -> Codes:
        """Return each key's row, by its first span; -1 for a key that several rows have."""
        count = int(self.code[-1]) + 1
        low, high = np.full(count, len(first), np.int64), np.full(count, -1, np.int64)
        np.minimum.at(low, self.code, first)
        np.maximum.at(high, self.code, first)
        return np.where(low == high, low, -1)

    def rows_seen(self, first: Codes, codes: Codes, events: pa.Table) -> Codes:
        """Return the row that each key had at the last event that the snapshot saw, or before all; -1 without one."""
        seen = np.flatnonzero(events[IS_SEEN].to_numpy())
        rows = np.full(int(self.code[-1]) + 1, -1, np.int64)
        rows[self.code[self.is_open]] = first[self.is_open]
        # Of several values for one place numpy keeps the last.
        rows[codes[seen]] = first[self.of_event[seen]]
        return rows


def _moves(events: pa.Table, codes: Codes, names: pa.Array, deletes: Codes) -> tuple[Codes, Codes]:
    """Return the partial creates of key changes, and for each the delete of its old key: the newest before it."""
    moves = np.flatnonzero(pc.is_valid(events[OLD_KEY_TEXT]).to_numpy())
    moved = events.select([CHUNK_ID, OLD_KEY_TEXT]).take(pa.array(moves))
    old = pc.index_in(window_keys(moved[CHUNK_ID], moved[OLD_KEY_TEXT]), value_set=names)
    old_codes = pc.fill_null(old, -1).to_numpy().astype(np.int64)
    rank = np.empty(len(codes), np.int64)
    rank[np.lexsort((events[SEQ].to_numpy(), events[LSN].to_numpy()))] = np.arange(len(codes))
    width = len(codes) + 1
    nearest = np.searchsorted(codes[deletes] * width + rank[deletes], old_codes * width + rank[moves]) - 1
    is_found = (old_codes >= 0) & (nearest >= 0)
    is_found[is_found] = codes[deletes[nearest[is_found]]] == old_codes[is_found]
    return moves[is_found], deletes[nearest[is_found]]


def _by_key(codes: Codes, mask: Mask) -> Mask:
    """Return for each key whether the mask is true for an event of it; ``codes`` are in order."""
    by_key = np.zeros(int(codes[-1]) + 1, np.bool_)
    by_key[codes[mask]] = True
    return by_key


def _carried(events: pa.Table, rows: Codes, chosen: Codes) -> pa.Array:
    """Return the columns that the events of each chosen row carried; ``rows`` has the row of each event."""
    lists = join_chunks(events[CARRIED])
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    texts = lists.flatten().dictionary_encode()
    width = len(texts.dictionary) + 1
    pairs = np.unique(np.repeat(rows, lengths) * width + texts.indices.to_numpy())
    low, high = (np.searchsorted(pairs, chosen * width, side="left"), np.searchsorted(pairs, (chosen + 1) * width))
    sizes = high - low
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes) + np.repeat(low, sizes)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), texts.dictionary.take(pa.array(pairs[within] % width))
    )
