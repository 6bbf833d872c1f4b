"""Find the drops and spikes of many series of counts, each against its own past.

Place: between the counts of ``operations`` and the page; knows nothing of tables. The rule, per series:

The *level* is the running average of the buckets before, of the counts' logarithms, so that a burst hardly raises it.
A *drop* is a run of buckets with at most a fifth of the level, a *spike* one with more than three times the level. A
run is an episode if all of these hold:

- At least ``_MIN_OPERATIONS`` are missing or in excess.
- A drop lasts at least ``_MIN_DROP_BUCKETS``. A spike's highest bucket is twice the highest level so far.
- **At most one earlier run of the kind was at least half as large**: drops by length, spikes by their highest bucket.

So what recurs (a job every five minutes, a quiet night) is no episode from its third time on, and a return to a former
level is none. The level pauses during an episode. After ``_MAX_PAUSE`` buckets the new level is the usual one, unless
the series has all but stopped.

All series advance together, bucket by bucket, so the cost in Python does not depend on how many they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DROP, SPIKE = "drop", "spike"

_LOW_SHARE, _HIGH_FACTOR = 0.2, 3.0
_MIN_OPERATIONS = 30.0
_MIN_DROP_BUCKETS = 3
_MEMORY_BUCKETS = 60
"""The level forgets with this time constant; a series is judged once it is so old."""
_MAX_PAUSE = 240
_STOPPED_SHARE = 0.05
"""A series with less than this share of its level has stopped: its drop lasts, however long."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A drop or spike of a series: buckets ``begin`` to ``end`` - 1, against the level ``usual`` per bucket.

    ``operations`` are counted in it, ``peak`` in its highest bucket. ``is_open`` if it lasts at the end of the series.
    """

    series: int
    kind: str
    begin: int
    end: int
    usual: float
    operations: int
    peak: int
    is_open: bool

    @property
    def deviation(self) -> float:
        """How many operations are missing or in excess."""
        return abs(self.operations - self.usual * (self.end - self.begin))


def find_episodes(counts: np.ndarray, shown_from: int, until: int) -> list[Episode]:
    """Return the episodes that end at ``shown_from`` or later; ``counts`` has a row per series, a column per bucket.

    Buckets from ``until`` on are not known completely, and are not judged.
    """
    count, watched = counts.shape[0], counts[:, :max(until, 0)]
    if not count or not watched.shape[1]:
        return []
    level = _Level(watched)
    runs = [_Drops(count), _Spikes(count)]
    episodes: list[Episode] = []
    for bucket in range(watched.shape[1]):
        values = watched[:, bucket].astype(np.float64)
        is_judged = bucket - level.first >= _MEMORY_BUCKETS
        for run in runs:
            episodes += run.close(values, bucket, watched)
            began = run.extend(values, level, is_judged)
            level.set(began, run.reference)
            level.set(run.accept_new_level(), run.reference)
        level.update(values, runs[0].is_episode | runs[1].is_episode)
    end = watched.shape[1]
    episodes += [episode for run in runs for episode in run.close(None, end, watched)]
    shown = (episode for episode in episodes if episode.end > shown_from)
    return sorted(shown, key=lambda episode: (episode.series, episode.begin))


class _Level:
    """The level of each series so far, and the highest one."""

    def __init__(self, counts: np.ndarray) -> None:
        self.first = np.where((counts > 0).any(axis=1), (counts > 0).argmax(axis=1), counts.shape[1])
        self.usual = np.zeros(counts.shape[0])
        self.highest = np.zeros(counts.shape[0])
        self._seen = np.zeros(counts.shape[0])

    def set(self, where: np.ndarray, level: np.ndarray) -> None:
        """Replace the level of some series."""
        self.usual = np.where(where, level, self.usual)

    def update(self, values: np.ndarray, paused: np.ndarray) -> None:
        """Take a bucket into account, but for paused series."""
        self._seen += (values > 0) | (self._seen > 0)
        weight = 1 / np.clip(self._seen, 1, _MEMORY_BUCKETS)
        usual_log = np.log1p(self.usual)
        after = np.expm1(usual_log + weight * (np.log1p(values) - usual_log))
        self.usual = np.where(paused, self.usual, after)
        # Before, a single bucket makes up much of it.
        self.highest = np.where(self._seen >= _MEMORY_BUCKETS, np.maximum(self.highest, self.usual), 0)


class _Runs:
    """The current run of one kind in each series, and the size of the second largest one of its past.

    ``reference`` is the level that the run's buckets are compared with: that at its beginning, or the current one if it
    lasts and is no episode.
    """

    kind: str

    def __init__(self, count: int) -> None:
        self.reference = np.zeros(count)
        self.is_episode = np.zeros(count, bool)
        self._length = np.zeros(count, np.int64)
        self._usual = np.zeros(count)
        self._is_judged = np.zeros(count, bool)
        self._sum = np.zeros(count)
        self._peak = np.zeros(count)
        self._largest = np.zeros((2, count))
        self._highest_level = np.zeros(count)

    def extend(self, values: np.ndarray, level: _Level, is_judged: np.ndarray) -> np.ndarray:
        """Add a bucket to the runs, or begin them; return where a run becomes an episode with it."""
        begins = (self._length == 0) & self._belongs(values, level.usual)
        follows = ~self.is_episode & (self._length > _MEMORY_BUCKETS)
        self.reference = np.where(begins | follows, level.usual, self.reference)
        self._usual = np.where(begins, level.usual, self._usual)
        self._is_judged = np.where(begins, is_judged, self._is_judged)
        runs = begins | (self._length > 0)
        self._length += runs
        self._highest_level = level.highest
        self._sum += np.where(runs, values, 0)
        self._peak = np.where(runs, np.maximum(self._peak, values), 0)
        is_large = (self._size() > 2 * self._largest[1]) & self._is_significant() & self._is_judged & runs
        began: np.ndarray = is_large & ~self.is_episode
        self.is_episode |= is_large
        return began

    def accept_new_level(self) -> np.ndarray:
        """Return where an episode has lasted so long that its own average, now the reference, is the new level."""
        average = self._sum / np.maximum(self._length, 1)
        goes_on = average >= _STOPPED_SHARE * self.reference
        accepted: np.ndarray = self.is_episode & (self._length == _MAX_PAUSE) & goes_on
        self.reference = np.where(accepted, average, self.reference)
        return accepted

    def close(self, values: np.ndarray | None, bucket: int, counts: np.ndarray) -> list[Episode]:
        """End the runs that a bucket does not continue, None: all; return the episodes among them."""
        ends = self._length > 0
        if values is not None:
            ends &= ~self._belongs(values, self.reference)
        episodes = []
        for series in np.flatnonzero(ends & self.is_episode).tolist():
            begin = bucket - int(self._length[series])
            total = int(counts[series, begin:bucket].sum())
            episodes.append(Episode(series, self.kind, begin, bucket, float(self._usual[series]), total,
                                    int(self._peak[series]), values is None))
        size = np.where(ends, self._size(), 0)
        first, second = self._largest
        self._largest = np.stack([np.maximum(first, size), np.maximum(np.minimum(first, size), second)])
        for state in (self._length, self._sum, self._peak, self.is_episode):
            state[ends] = 0
        return episodes

    def _belongs(self, values: np.ndarray, usual: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _is_significant(self) -> np.ndarray:
        raise NotImplementedError

    def _size(self) -> np.ndarray:
        raise NotImplementedError


class _Drops(_Runs):
    kind = DROP

    def _belongs(self, values: np.ndarray, usual: np.ndarray) -> np.ndarray:
        is_low: np.ndarray = (values <= _LOW_SHARE * usual) & (usual > 0)
        return is_low

    def _is_significant(self) -> np.ndarray:
        is_missing = self.reference * self._length - self._sum >= _MIN_OPERATIONS
        is_significant: np.ndarray = is_missing & (self._length >= _MIN_DROP_BUCKETS)
        return is_significant

    def _size(self) -> np.ndarray:
        return self._length


class _Spikes(_Runs):
    kind = SPIKE

    def _belongs(self, values: np.ndarray, usual: np.ndarray) -> np.ndarray:
        is_high: np.ndarray = values > _HIGH_FACTOR * usual + _MIN_OPERATIONS
        return is_high

    def _is_significant(self) -> np.ndarray:
        is_significant: np.ndarray = self._peak > 2 * self._highest_level
        return is_significant

    def _size(self) -> np.ndarray:
        return self._peak
