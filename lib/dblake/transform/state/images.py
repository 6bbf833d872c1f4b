"""Images of events: columns of maps from column names to texts, as arrays by column.

Place: below ``fold``. Guarantee: no loop over rows, and no copy of a text that no caller takes. What a missing column
means is left to ``fold``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class EventImages:
    """A column of maps from column names to texts."""

    def __init__(self, maps: pa.Array) -> None:
        self._rows = len(maps)
        offsets = maps.offsets.to_numpy()
        lengths = np.diff(offsets)
        if maps.null_count:
            # A NULL map may still span entries.
            lengths = np.where(pc.is_null(maps).to_numpy(zero_copy_only=False), 0, lengths)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        names = maps.keys.slice(first, last - first).dictionary_encode()
        self._items = maps.items.slice(first, last - first)
        self._names = {name: code for code, name in enumerate(names.dictionary.to_pylist())}
        codes = names.indices.to_numpy()
        if maps.null_count and int(lengths.sum()) != len(codes):
            starts = np.repeat(offsets[:-1] - first, lengths)
            within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            entries = starts + within
        else:
            entries = np.arange(len(codes))
        row_of = np.repeat(np.arange(self._rows), lengths)
        kinds = codes[entries].astype(np.int16 if len(self._names) < 32768 else np.int32)
        by_name = np.argsort(kinds, kind="stable")
        bounds = np.searchsorted(kinds[by_name], np.arange(len(self._names) + 1))
        self._entries = entries[by_name]
        self._row_of = row_of[by_name]
        self._bounds = bounds

    def entries(self, name: str) -> np.ndarray:
        """For each row the entry of a column; -1 if the image does not have it."""
        entries = np.full(self._rows, -1, np.int64)
        code = self._names.get(name)
        if code is not None:
            these = slice(self._bounds[code], self._bounds[code + 1])
            entries[self._row_of[these]] = self._entries[these]
        return entries

    def texts(self, name: str, rows: np.ndarray) -> pa.Array:
        """Return the texts of a column in some rows; NULL for row -1 and where the image lacks the column."""
        entries = self.entries(name)
        at = np.where(rows < 0, -1, entries[rows]) if self._rows else np.full(len(rows), -1)
        return self._items.take(pa.array(at, mask=at < 0))
