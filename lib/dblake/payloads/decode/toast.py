"""Fill an update's new row with unchanged TOASTed values from its old row, for PostgreSQL's formats.

A value that is unchanged and stored out of line (TOAST) is not sent with the new row. Where the whole old row was sent,
it has the value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.payloads.decode.grid import Grid, take
from dblake.payloads.decode.payloads import Index


def fill_unchanged(new: Grid, old: Grid, old_of: Index) -> Grid:
    """Return the new rows with the values that only their old rows have; ``old_of`` is the old row's number or -1."""
    if new.present.all() or not len(old):
        return new
    filled = ~new.present & (old_of >= 0)[:, None] & old.present[old_of]
    if not filled.any():
        return new
    present = new.present | filled
    row, column = np.nonzero(filled)
    cells = np.cumsum(old.present.ravel())[old_of[row] * len(old.names) + column] - 1
    positions = pa.array(np.cumsum(new.present.ravel())[present.ravel()] - 1, mask=filled[present])
    values = pc.replace_with_mask(new.values.take(positions), pa.array(filled[present]), take(old.values, cells))
    undecoded = new.undecoded
    if old.undecoded is not None:
        undecoded = (filled & old.undecoded[old_of]) | (new.undecoded if new.undecoded is not None else False)
    return Grid(new.names, values, present, undecoded)
