"""Which chunk windows hold which log rows: ``ChunkWindow.holds`` for a whole Arrow batch at once.

Part of the second step of reconcile. Promises for each row exactly the windows for which ``holds`` is true of its
position and transaction. A join in Spark would compare each row with each window of its table, and a dump of many rows
has many windows; here a row is compared with those whose high watermark comes after it, one after the other, until none
of the rest reaches back to it: nearly always one or two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.window import ChunkWindow
from dblake.landing.columns import CHUNK_ID, INCARNATION, LSN, SEQ, TABLE, TXID

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


class Windows:
    """Chunk windows of any tables, numbered as they are given."""

    def __init__(self, windows: Sequence[ChunkWindow]) -> None:
        numbers: dict[tuple[str, int], list[int]] = {}
        for number, window in enumerate(windows):
            numbers.setdefault((window.table, window.high.incarnation), []).append(number)
        self._lives = {life: _Life.of(windows, ours) for life, ours in numbers.items()}

    def rows_held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Log rows of landing, once for each window that holds them, with the window's number for ``chunk_id``."""
        taken, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        places = [_numbers(rows, name) for name in (LSN, SEQ, TXID)]
        for life, which in _lives_of(rows):
            if life in self._lives:
                for row, window in self._lives[life].held(*(place[which] for place in places)):
                    taken.append(which[row])
                    numbers.append(window)
        held = rows.take(pa.array(np.concatenate(taken)))
        named = pc.cast(pa.array(np.concatenate(numbers)), pa.string())
        return held.set_column(held.schema.get_field_index(CHUNK_ID), CHUNK_ID, named)


@dataclass(frozen=True, slots=True)
class _Life:
    """The windows of one table in one incarnation, by high watermark; xmin and xmax are never if nothing was unseen.

    ``first_low`` and ``first_xmin`` are the least of a window and all after it. ``running`` has the transactions that
    were under way for a snapshot, as ``window · len(ids) + place in ids``, both sorted.
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
    def of(cls, windows: Sequence[ChunkWindow], numbers: Sequence[int]) -> _Life:
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
            first_low=_least_from(low[0]), first_xmin=_least_from(xmin),
            ids=ids, running=np.sort(np.concatenate([np.zeros(0, np.int64), *running])),
        )

    def held(self, lsn: Numbers, seq: Numbers, txid: Numbers) -> list[tuple[Numbers, Numbers]]:
        """Pairs of rows, by place, and numbers of windows that hold them; a row without transaction has txid -1."""
        row = np.arange(len(lsn))
        at = np.searchsorted(self.high[0], lsn)
        found: list[tuple[Numbers, Numbers]] = []
        while True:
            more = at < len(self.number)
            more[more] &= (lsn[row[more]] >= self.first_low[at[more]]) | (txid[row[more]] >= self.first_xmin[at[more]])
            row, at = row[more], at[more]
            if not len(row):
                return found
            where = lsn[row], seq[row]
            holds = _up_to(where, self.high, at) & (~_up_to(where, self.low, at) | self._unseen(txid[row], at))
            found.append((row[holds], self.number[at[holds]]))
            at = at + 1

    def _unseen(self, txid: Numbers, at: Numbers) -> Mask:
        later = txid >= self.xmax[at]
        if not len(self.ids):
            return later
        place = np.minimum(np.searchsorted(self.ids, txid), len(self.ids) - 1)
        ran = (self.ids[place] == txid) & np.isin(at * len(self.ids) + place, self.running)
        either: Mask = np.logical_or(later, ran)
        return either


def _up_to(where: tuple[Numbers, Numbers], bound: tuple[Numbers, Numbers], at: Numbers) -> Mask:
    lsn, seq = bound[0][at], bound[1][at]
    before: Mask = np.logical_or(where[0] < lsn, (where[0] == lsn) & (where[1] <= seq))
    return before


def _lives_of(rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], Numbers]]:
    """The tables and incarnations that rows are of, and which rows those are."""
    tables = rows.column(TABLE).dictionary_encode()
    incarnations = rows.column(INCARNATION).dictionary_encode()
    lives = len(incarnations.dictionary)
    code = tables.indices.to_numpy() * lives + incarnations.indices.to_numpy()
    for present in np.unique(code):
        table, incarnation = tables.dictionary[present // lives], incarnations.dictionary[present % lives]
        yield (table.as_py(), incarnation.as_py()), np.flatnonzero(code == present)


def _numbers(rows: pa.RecordBatch, name: str) -> Numbers:
    return np.asarray(rows.column(name).fill_null(-1))


def _pair(positions: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    return np.array([lsn for lsn, _ in positions], np.int64), np.array([seq for _, seq in positions], np.int64)


def _least_from(values: Numbers) -> Numbers:
    return np.minimum.accumulate(values[::-1])[::-1]
