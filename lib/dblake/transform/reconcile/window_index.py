"""Find the chunk windows that hold each log row: ``ChunkWindow.holds`` for a whole Arrow batch at once.

Place: second step of a micro-batch, in tasks. Guarantee: each row gets exactly the windows for which ``holds`` is true
of its position and transaction. A Spark join would compare each row with every window of its table, and a large dump
has many windows. Here a row is compared with the windows whose high watermark follows it, in order, until none of the
rest reaches back to it: nearly always one or two. Decoding the rows is left to ``keys``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.window import ChunkWindow
from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE, TXID

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


class WindowIndex:
    """Chunk windows of any tables; a window's number is its place in the given sequence."""

    def __init__(self, windows: Sequence[ChunkWindow]) -> None:
        numbers: dict[tuple[str, int], list[int]] = {}
        for number, window in enumerate(windows):
            numbers.setdefault((window.table, window.high.incarnation), []).append(number)
        self._by_group = {group: _TableWindows.of(windows, members) for group, members in numbers.items()}

    def rows_in_windows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return landing's log rows, once per window that holds them, with the window's number as ``chunk_id``.

        Requires ``table, incarnation, lsn, seq, txid, chunk_id``; returns all columns of ``rows``.
        """
        indices, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        columns = [_numbers(rows, name) for name in (LSN, SEQ, TXID)]
        for group, members in _groups(rows):
            if group in self._by_group:
                for row, window in self._by_group[group].match(*(column[members] for column in columns)):
                    indices.append(members[row])
                    numbers.append(window)
        matched = rows.take(pa.array(np.concatenate(indices)))
        window_ids = pc.cast(pa.array(np.concatenate(numbers)), pa.string())
        return matched.set_column(matched.schema.get_field_index(CHUNK_ID), CHUNK_ID, window_ids)


@dataclass(frozen=True, slots=True)
class _TableWindows:
    """The windows of one table in one incarnation, ordered by high watermark.

    ``xmax`` is ``_NEVER`` for a window without a snapshot. ``first_low`` and ``first_xmin`` are the minimum of a window
    and all later ones. ``running`` has the transactions in progress in a snapshot, as ``window · len(ids) + index in
    ids``; ``ids`` and ``running`` are sorted.
    """

    number: Numbers
    low: tuple[Numbers, Numbers]
    high: tuple[Numbers, Numbers]
    xmax: Numbers
    first_low: Numbers
    first_xmin: Numbers
    ids: Numbers
    running: Numbers

    @classmethod
    def of(cls, windows: Sequence[ChunkWindow], numbers: Sequence[int]) -> _TableWindows:
        order = sorted(numbers, key=lambda n: windows[n].high)
        spans = [windows[n] for n in order]
        snapshots = [window.snapshot for window in spans]
        low = _pair([(w.low.lsn, w.low.seq) for w in spans])
        xmin = np.array([s.xmin if s else _NEVER for s in snapshots], np.int64)
        ids = np.unique(np.array([x for s in snapshots if s for x in s.xip], np.int64))
        running = [
            at * len(ids) + np.searchsorted(ids, np.array(s.xip, np.int64)) for at, s in enumerate(snapshots) if s
        ]
        return cls(
            number=np.array(order, np.int64), low=low, high=_pair([(w.high.lsn, w.high.seq) for w in spans]),
            xmax=np.array([s.xmax if s else _NEVER for s in snapshots], np.int64),
            first_low=_suffix_minimum(low[0]), first_xmin=_suffix_minimum(xmin),
            ids=ids, running=np.sort(np.concatenate([np.zeros(0, np.int64), *running])),
        )

    def match(self, lsn: Numbers, seq: Numbers, txid: Numbers) -> list[tuple[Numbers, Numbers]]:
        """Return pairs of arrays: indices of rows, and numbers of the windows that hold them.

        The arguments are columns of the same rows; a row without a transaction has ``txid`` -1.
        """
        row = np.arange(len(lsn))
        at = np.searchsorted(self.high[0], lsn)
        pairs: list[tuple[Numbers, Numbers]] = []
        while True:
            more = at < len(self.number)
            more[more] &= (lsn[row[more]] >= self.first_low[at[more]]) | (txid[row[more]] >= self.first_xmin[at[more]])
            row, at = row[more], at[more]
            if not len(row):
                return pairs
            positions = lsn[row], seq[row]
            after_low_or_unseen = ~_is_up_to(positions, self.low, at) | self._is_unseen(txid[row], at)
            holds = _is_up_to(positions, self.high, at) & after_low_or_unseen
            pairs.append((row[holds], self.number[at[holds]]))
            at = at + 1

    def _is_unseen(self, txid: Numbers, at: Numbers) -> Mask:
        """Return which transactions the snapshot of window ``at`` could not see."""
        later = txid >= self.xmax[at]
        if not len(self.ids):
            return later
        index = np.minimum(np.searchsorted(self.ids, txid), len(self.ids) - 1)
        in_progress = (self.ids[index] == txid) & np.isin(at * len(self.ids) + index, self.running)
        unseen: Mask = np.logical_or(later, in_progress)
        return unseen


def _is_up_to(positions: tuple[Numbers, Numbers], bounds: tuple[Numbers, Numbers], at: Numbers) -> Mask:
    """Return which positions are at or before the bound of window ``at``; both are (lsn, seq)."""
    lsn, seq = bounds[0][at], bounds[1][at]
    up_to: Mask = np.logical_or(positions[0] < lsn, (positions[0] == lsn) & (positions[1] <= seq))
    return up_to


def _groups(rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], Numbers]]:
    """Yield each table and incarnation among rows, with the indices of its rows."""
    tables = rows.column(TABLE).dictionary_encode()
    incarnations = rows.column(INCARNATION).dictionary_encode()
    count = len(incarnations.dictionary)
    code = tables.indices.to_numpy() * count + incarnations.indices.to_numpy()
    for present in np.unique(code):
        table, incarnation = tables.dictionary[present // count], incarnations.dictionary[present % count]
        yield (table.as_py(), incarnation.as_py()), np.flatnonzero(code == present)


def _numbers(rows: pa.RecordBatch, name: str) -> Numbers:
    return np.asarray(rows.column(name).fill_null(-1))


def _pair(positions: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    return np.array([lsn for lsn, _ in positions], np.int64), np.array([seq for _, seq in positions], np.int64)


def _suffix_minimum(values: Numbers) -> Numbers:
    return np.minimum.accumulate(values[::-1])[::-1]
