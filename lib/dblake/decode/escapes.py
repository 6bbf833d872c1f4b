"""Text with backslashes to the text it means, over a whole buffer: for the formats that write it so.

Which letters may follow a backslash, and what they mean, is left to the formats; here only which backslashes announce
something, and the buffer without what need not stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dblake.decode.grid import spans, take
from dblake.decode.payloads import Bytes, Index, Mask


def announcing(backslashes: Index) -> Mask:
    """Which backslashes begin an escape: in a run of them, every other one announces the next."""
    runs = np.append(True, np.diff(backslashes) != 1)
    number = np.arange(len(backslashes))
    return np.asarray((number - np.maximum.accumulate(np.where(runs, number, 0))) % 2 == 0)


def without(
    data: Bytes, bounds: Index, places: Index, cell: Index, lengths: Index
) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """The data without some stretches, and where bounds lie then; a stretch stands before bound ``cell`` and after the
    one before that."""
    pieces = np.empty(2 * len(places) + 2, np.int64)
    pieces[0], pieces[-1] = 0, len(data)
    pieces[1:-1:2], pieces[2:-1:2] = places, places + lengths
    kept = take(spans(data, pieces.astype(np.int32)), 2 * np.arange(len(places) + 1))
    # A bound moves to the left by what is left out before it.
    before = np.cumsum(np.bincount(cell, lengths, minlength=len(bounds)).astype(np.int64))
    return np.frombuffer(kept.buffers()[2], np.uint8), (bounds - before).astype(np.int32)
