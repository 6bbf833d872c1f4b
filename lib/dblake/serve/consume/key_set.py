"""A large set of keys that many small arrays of keys are compared with.

Place: below ``state_rows``. Arrow builds a hash table of all keys for each comparison: a second for a million.
Guarantee: a key is in the set exactly if its text is; hashes only choose what is compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.serve.consume.crc32 import crc32_of


class KeySet:
    """The keys of one array, in order of their hashes."""

    def __init__(self, keys: pa.Array) -> None:
        hashes = crc32_of(keys)
        order = np.argsort(hashes, kind="stable")
        self._keys, self._hashes = keys.take(pa.array(order)), hashes[order]

    def find(self, texts: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """Return a mask of the texts that are in the set."""
        hashes = crc32_of(texts)
        first, last = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        is_member: npt.NDArray[np.bool_] = last > first
        if is_member.any():
            candidates = np.unique(_ranges(first[is_member], last[is_member]))
            near = self._keys.take(pa.array(candidates))
            is_member[is_member] = pc.is_in(texts.filter(pa.array(is_member)), near).to_numpy()
        return is_member


def _ranges(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return all numbers from each ``first`` to before its ``last``."""
    counts = last - first
    starts = np.cumsum(counts) - counts
    numbers: npt.NDArray[np.int64] = np.arange(int(counts.sum())) - np.repeat(starts - first, counts)
    return numbers
