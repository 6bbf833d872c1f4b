"""Positions of many rows, as numpy arrays: the order of ``Position`` for whole columns.

Place: below every module that orders, prunes or compares rows by position. Guarantee: the same order as ``Position``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dblake.base.core.position import Position


def is_older(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> np.ndarray:
    """Return True where a position, given as its three parts, comes before another."""
    (a, b, c), (x, y, z) = these, those
    older: np.ndarray = (a < x) | ((a == x) & ((b < y) | ((b == y) & (c < z))))
    return older


def position_parts(at: Position) -> list[np.ndarray]:
    """Return a position as ``is_older`` takes it."""
    return [np.array(part, np.int64) for part in (at.incarnation, at.lsn, at.seq)]
