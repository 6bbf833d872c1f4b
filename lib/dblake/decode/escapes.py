"""Text with backslashes to the text it means, over a whole buffer: for the formats that write it so.

Which letters may follow a backslash, and what they mean, is left to the formats; here only which backslashes announce
something, and the buffer without what need not stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dblake.decode.grid import spans, take
from dblake.decode.payloads import Bytes, Index

_BACKSLASH = ord("\\")


def announcing(data: Bytes, bounds: Index) -> tuple[Index, Index]:
    """Where escapes begin in the values ``data[bounds[2 i]:bounds[2 i + 1]]``, and the bound each stands before.

    In a run of backslashes every other one announces the next.
    """
    found = np.flatnonzero(data == _BACKSLASH)
    cell = np.searchsorted(bounds, found, side="right")
    found, cell = found[cell % 2 == 1], cell[cell % 2 == 1]
    if len(found) == 0:
        return found, cell
    runs = np.append(True, np.diff(found) != 1)
    number = np.arange(len(found))
    announces = (number - np.maximum.accumulate(np.where(runs, number, 0))) % 2 == 0
    return found[announces], cell[announces]


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
