"""Resolve backslash escapes over a whole buffer, for the formats that have them.

This module finds the backslashes that begin an escape, and removes bytes from the buffer. Which letters may follow a
backslash, and their meaning, is left to the formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dblake.payloads.decode.grid import spans, take
from dblake.payloads.decode.payloads import Bytes, Index

_BACKSLASH = ord("\\")


def find_escapes(data: Bytes, bounds: Index) -> tuple[Index, Index]:
    """Return the offsets at which escapes begin, and for each the number of the bound behind it.

    Values are ``data[bounds[2 i]:bounds[2 i + 1]]``. In a run of backslashes every other one begins an escape.
    """
    offsets = np.flatnonzero(data == _BACKSLASH)
    cell = np.searchsorted(bounds, offsets, side="right")
    offsets, cell = offsets[cell % 2 == 1], cell[cell % 2 == 1]
    if len(offsets) == 0:
        return offsets, cell
    begins_run = np.append(True, np.diff(offsets) != 1)
    number = np.arange(len(offsets))
    begins_escape = (number - np.maximum.accumulate(np.where(begins_run, number, 0))) % 2 == 0
    return offsets[begins_escape], cell[begins_escape]


def remove_spans(
    data: Bytes, bounds: Index, offsets: Index, cell: Index, lengths: Index
) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the data without some spans, and the bounds in it; a span lies between bound ``cell - 1`` and ``cell``."""
    pieces = np.empty(2 * len(offsets) + 2, np.int64)
    pieces[0], pieces[-1] = 0, len(data)
    pieces[1:-1:2], pieces[2:-1:2] = offsets, offsets + lengths
    kept = take(spans(data, pieces.astype(np.int32)), 2 * np.arange(len(offsets) + 1))
    # A bound moves to the left by the bytes removed before it.
    removed = np.cumsum(np.bincount(cell, lengths, minlength=len(bounds)).astype(np.int64))
    return np.frombuffer(kept.buffers()[2], np.uint8), (bounds - removed).astype(np.int32)
