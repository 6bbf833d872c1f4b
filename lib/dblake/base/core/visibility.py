"""Which transactions a chunk's snapshot saw, for whole columns: ``Snapshot.sees`` on arrays.

Place: below the end of a dump and below verification. ``reconcile.window_index`` decides the same for many snapshots at
once.
"""

from __future__ import annotations

import numpy as np

from dblake.base.core.window import Snapshot


def are_visible(txids: np.ndarray, snapshot: Snapshot) -> np.ndarray:
    """Return where a snapshot sees a committed transaction; -1, no transaction id, is visible."""
    visible: np.ndarray = (txids < snapshot.xmax) & ~np.isin(txids, np.array(snapshot.xip, np.int64))
    return visible
