"""What an update's old row knows of its new one, for PostgreSQL's formats: what is unchanged and stored out of line.

Such a value is not sent with the new row. Where the whole old row was sent, it is there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.grid import Grid, take
from dblake.decode.payloads import Index


def fill_unchanged(new: Grid, old: Grid, old_of: Index) -> Grid:
    """New rows with the unchanged values that their old rows carry."""
    if new.present.all() or not len(old):
        return new
    found = ~new.present & (old_of >= 0)[:, None] & old.present[old_of]
    if not found.any():
        return new
    present = new.present | found
    row, column = np.nonzero(found)
    cells = np.cumsum(old.present.ravel())[old_of[row] * len(old.names) + column] - 1
    own = pa.array(np.cumsum(new.present.ravel())[present.ravel()] - 1, mask=found[present])
    values = pc.replace_with_mask(new.values.take(own), pa.array(found[present]), take(old.values, cells))
    undecoded = new.undecoded
    if old.undecoded is not None:
        undecoded = (found & old.undecoded[old_of]) | (new.undecoded if new.undecoded is not None else False)
    return Grid(new.names, values, present, undecoded)
