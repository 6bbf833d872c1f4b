"""A large table's events, folded by ranges of its keys.

Events too many for one task's memory are split into buckets by key range, and each bucket is folded alone. Ranges
rather than hashes: the rows of a bucket end up in the same files, so that a later merge finds recent keys in few of
them. Keys that partial key changes connect go to one bucket: together they are the history of one row. Such a bucket
has no limit: a statement that moves each row to the next row's key connects all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import join_chunks
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.payloads.decode.columns import KEY, KEY_BEFORE, PARTIAL
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader, FileSpan, read_span
from dblake.transform.state.fold import NEEDED, fold, key_texts
from dblake.transform.state.runner import TaskRunner
from dblake.transform.state.shape import Shape
from dblake.transform.state.values import read_texts

BUCKET_BYTES = 128 << 20
"""Images of about so many bytes are folded at once."""
_SAMPLED_SPANS = 8
_SAMPLED_ROWS = 4096

Taken = TypeVar("Taken")


def fold_ranges(
    events: EventReader, wanted: Predicate, shape: Shape, truncated_at: Position | None, size: float,
    runner: TaskRunner, take: Callable[[pa.Table], Taken],
) -> Iterator[Taken]:
    """Fold the events that fit, which have about ``size`` bytes, by key ranges; yield what ``take`` makes of each.

    ``take`` is called where a range is folded. No key is in two of the ranges.
    """
    buckets = max(int(size / BUCKET_BYTES) + 1, 1)
    spans = [span.of_group(group) for span in events.spans(wanted) for group in span.groups]
    connected = _connected_keys(events, wanted, spans, shape) if buckets > 1 and shape.primary_key else _NONE_CONNECTED
    split = _Split(events.path, wanted, shape, buckets, _bounds(events, wanted, spans, shape, buckets), connected)
    yield from runner.exchange(split, spans, buckets, _Fold(shape, truncated_at, take))


@dataclass(frozen=True)
class _Fold(Generic[Taken]):
    shape: Shape
    truncated_at: Position | None
    take: Callable[[pa.Table], Taken]

    def __call__(self, events: pa.Table) -> Taken:
        return self.take(fold(events, self.shape, self.truncated_at))


@dataclass(frozen=True)
class _Connected:
    """Keys that key changes connect, and for each the key in whose place all connected ones go to a bucket."""

    keys: pa.Array
    places: pa.Array

    def replace(self, texts: pa.Array) -> pa.Array:
        """Return the keys, connected ones by the key in whose place they go."""
        if not len(self.keys):
            return texts
        return pc.coalesce(self.places.take(pc.index_in(texts, value_set=self.keys)), texts)


_NONE_CONNECTED = _Connected(pa.array([], pa.string()), pa.array([], pa.string()))


@dataclass(frozen=True)
class _Split:
    """Splits the events of a span by the range their key is in."""

    path: str
    wanted: Predicate
    shape: Shape
    buckets: int
    bounds: pa.Array
    connected: _Connected

    def __call__(self, span: FileSpan) -> Iterator[tuple[int, pa.Table]]:
        for events in read_span(self.path, span, self.wanted, NEEDED):
            rows = events.filter(pc.not_equal(events["op"], Op.TRUNCATE)).combine_chunks()
            if not rows.num_rows:
                continue
            buckets = self._buckets(rows)
            order = np.argsort(buckets, kind="stable")
            edges = np.searchsorted(buckets[order], np.arange(self.buckets + 1))
            rows = rows.take(pa.array(order))
            for bucket in range(self.buckets):
                if edges[bucket + 1] > edges[bucket]:
                    yield bucket, rows.slice(edges[bucket], edges[bucket + 1] - edges[bucket])

    def _buckets(self, rows: pa.Table) -> np.ndarray:
        if not self.shape.primary_key or not len(self.bounds):
            return np.zeros(rows.num_rows, np.int64)
        keys = _comparable(self.connected.replace(_key_texts(rows, KEY, self.shape)), self.shape)
        places = np.searchsorted(_numpy(self.bounds), _numpy(keys), side="right")
        places[pc.is_null(keys).to_numpy(zero_copy_only=False)] = 0
        return np.minimum(places, self.buckets - 1)


def _bounds(
    events: EventReader, wanted: Predicate, spans: Sequence[FileSpan], shape: Shape, buckets: int
) -> pa.Array:
    """Keys that divide a sample of the events into buckets of the same size."""
    if buckets < 2 or not shape.primary_key:
        return pa.array([], pa.string())
    chosen = spans[:: max(len(spans) // _SAMPLED_SPANS, 1)]
    keys = []
    for span in chosen:
        for found in events.read_span(span, wanted, ("op", "key")):
            rows = found.filter(pc.not_equal(found["op"], Op.TRUNCATE))
            step = max(rows.num_rows // _SAMPLED_ROWS, 1)
            sample = rows.take(pa.array(np.arange(0, rows.num_rows, step)))
            keys.append(_comparable(_key_texts(sample, KEY, shape), shape))
    ordered = pa.concat_arrays(keys).drop_null() if keys else pa.array([], pa.string())
    ordered = ordered.take(pc.sort_indices(ordered))
    if not len(ordered):
        return ordered
    return ordered.take(pa.array([len(ordered) * n // buckets for n in range(1, buckets)]))


def _connected_keys(events: EventReader, wanted: Predicate, spans: Sequence[FileSpan], shape: Shape) -> _Connected:
    """Return the keys of key changes whose new row is partial: only these need their old key's events."""
    pairs = []
    for span in spans:
        if any(rows[KEY_BEFORE].null_count < rows.num_rows for rows in events.read_span(span, wanted, (KEY_BEFORE,))):
            for rows in events.read_span(span, wanted, (KEY, KEY_BEFORE, PARTIAL)):
                moved = rows.filter(pc.and_(pc.is_valid(rows[KEY_BEFORE]), rows[PARTIAL]))
                pairs += [_key_texts(moved, name, shape) for name in (KEY, KEY_BEFORE)] if moved.num_rows else []
    if not pairs:
        return _NONE_CONNECTED
    ends = [pa.concat_arrays(pairs[0::2]), pa.concat_arrays(pairs[1::2])]
    keys = pc.unique(pa.concat_arrays(ends))
    new, old = (pc.index_in(texts, value_set=keys).to_numpy() for texts in ends)
    place, before = np.arange(len(keys)), None
    while before is None or (place != before).any():
        before = place.copy()
        least = np.minimum(place[new], place[old])
        np.minimum.at(place, new, least)
        np.minimum.at(place, old, least)
        place = place[place]
    return _Connected(keys, keys.take(pa.array(place)))


def _key_texts(rows: pa.Table, name: str, shape: Shape) -> pa.Array:
    return key_texts(join_chunks(rows[name]), shape.primary_key)


def _comparable(texts: pa.Array, shape: Shape) -> pa.Array:
    """Keys in an order of their own: numbers if the key is one whole number, else the key's text."""
    kind = next(c.type for c in shape.columns if c.name == shape.primary_key[0])
    if len(shape.primary_key) == 1 and kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return read_texts("BIGINT", texts)
    return texts


def _numpy(keys: pa.Array) -> np.ndarray:
    if pa.types.is_integer(keys.type):
        numbers: np.ndarray = pc.fill_null(keys, 0).to_numpy()
        return numbers
    return np.array(pc.fill_null(keys, "").to_pylist(), dtype=object)
