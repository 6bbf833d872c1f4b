"""Arrays of Arrow, as a comparison needs them: as one array, and with the places where two differ.

Place: below ``compare`` and ``touched``. Guarantee: values that state holds alike are equal: NULL equals NULL and NaN
equals NaN, -0.0 is not 0.0, and lists are compared element by element.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray


def differs(left: pa.Array, right: pa.Array) -> Mask:
    """Return where two arrays of one type and length differ. NULL equals NULL, NaN equals NaN, -0.0 is not 0.0."""
    valid = [_mask(pc.is_valid(side)) for side in (left, right)]
    both = valid[0] & valid[1]
    if pa.types.is_list(left.type):
        unequal = _lists_differ(left, right)
    elif pa.types.is_floating(left.type):
        unequal = _floats_differ(left, right)
    else:
        unequal = _mask(pc.fill_null(pc.not_equal(left, right), False))
    return np.asarray((valid[0] != valid[1]) | (both & unequal))


def _floats_differ(left: pa.Array, right: pa.Array) -> Mask:
    a, b = (pc.fill_null(side, 0.0).to_numpy() for side in (left, right))
    bits = np.dtype(f"i{a.dtype.itemsize}")
    return np.asarray((a.view(bits) != b.view(bits)) & ~(np.isnan(a) & np.isnan(b)))


def _lists_differ(left: pa.Array, right: pa.Array) -> Mask:
    """Compare lists by their lengths, then their elements where those agree."""
    lengths = [pc.fill_null(pc.list_value_length(side), 0).to_numpy() for side in (left, right)]
    unequal = lengths[0] != lengths[1]
    alike = pa.array(~unequal)
    elements = [side.filter(alike).flatten() for side in (left, right)]
    owner = np.repeat(np.flatnonzero(~unequal), lengths[0][~unequal])
    if len(elements[0]) == len(elements[1]) == len(owner):
        unequal = unequal.copy()
        unequal[owner[differs(*elements)]] = True
    return np.asarray(unequal)


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(bool)
