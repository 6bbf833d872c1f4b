"""Folded rows with values of given sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def folded(keys: Sequence[int], sizes: Sequence[int], *, lsn: int = 10, repeats: bool = False) -> pa.Table:
    """Return folded rows ``_key`` to ``big``; with ``repeats`` all values of a size are equal."""
    count, random = len(keys), np.random.default_rng(1)
    values = ["x" * size if repeats else random.bytes(size // 2 + 1).hex()[:size] for size in sizes]
    none = pa.array([[]] * count, pa.list_(pa.string()))
    texts = pa.array([str(key) for key in keys], pa.string())
    return pa.table({
        "_key": texts, "_incarnation": pa.repeat(1, count), "_lsn": pa.repeat(lsn, count), "_seq": pa.repeat(0, count),
        "_deleted": pa.repeat(False, count), "_lossy": none, "_missing": none, "_unknown": none,
        "_moved_from": pa.nulls(count, pa.string()), "id": texts, "big": pa.array(values, pa.string()),
    })
