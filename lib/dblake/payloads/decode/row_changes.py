"""Turn old and new rows of a log into changes: creates, updates, deletes, and key changes.

Called by the decoders of log formats once they have read the rows. Guarantees: an update that changes the key becomes
``d`` of the old key and ``c`` of the new one, which carries the old key. A key is never guessed. If a landing row has
many row changes, each gets its ``step``. Reading bytes is left to the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dblake.base.core.op import Op
from dblake.payloads.decode.columns import IMAGE
from dblake.payloads.decode.grid import Grid, take, undecoded_names
from dblake.payloads.decode.payloads import Changes, Index, Mask, Payloads


@dataclass(frozen=True, slots=True)
class Images:
    """Old or new rows. ``row`` is the number of each one's landing row; ``alone`` marks deletes, or inserts.

    Where a landing row holds several row changes, ``number`` counts them from 0 and ``last`` marks the last one.
    """

    row: Index
    grid: Grid
    alone: Mask
    number: Index | None = None
    last: Mask | None = None


def row_changes(payloads: Payloads, old: Images, new: Images, old_of: Index, *, key_missing: str) -> list[Changes]:
    """Return creates and updates for new rows, deletes for old rows alone, and one of each for a changed key.

    ``old_of`` is the number of the old row of each new one, -1 for none. ``key_missing`` is the next step for a row
    without its key, for which it raises ReconcileError.
    """
    keys = [payloads.schema.names.index(name) for name in payloads.schema.primary_key]
    for images in (old, new):
        payloads.reject(
            images.grid.without(keys), "a value of the primary key was not sent", rows=images.row,
            next_step=key_missing,
        )
    both = np.flatnonzero(old_of >= 0)
    moved = np.zeros(len(new.row), np.bool_)
    if keys and len(both):
        moved[both] = new.grid.differs(both, old.grid, old_of[both], keys)
    deleted = old.alone.copy()
    deleted[old_of[moved]] = True
    changes = []
    if len(new.row):
        changes.append(_creates_and_updates(new, old.grid, old_of, keys, moved))
    if deleted.any():
        changes.append(_deletes(old, np.flatnonzero(deleted), keys))
    return changes


def _creates_and_updates(new: Images, old: Grid, old_of: Index, keys: Sequence[int], moved: Mask) -> Changes:
    """Return a change for each new row; ``old_of`` is the number of its old row, -1 for none."""
    key_before = old.key(keys).take(pa.array(old_of, mask=~moved)) if moved.any() else None
    old_of = np.where(moved, -1, old_of)
    has_old = old_of >= 0
    before, undecoded = pa.nulls(len(new.row), IMAGE), new.grid.undecoded
    if has_old.any():
        before = old.image()
        if not np.array_equal(old_of, np.arange(len(old))):
            before = before.take(pa.array(old_of, mask=~has_old))
        if old.undecoded is not None:
            undecoded_before = old.undecoded[old_of] & has_old[:, None]
            undecoded = undecoded_before if undecoded is None else undecoded | undecoded_before
    step = moved.astype(np.int64)
    return Changes(
        op=take(pa.array([Op.UPDATE, Op.CREATE]), new.alone | moved),
        key=new.grid.key(keys), before=before, after=new.grid.image(),
        partial=pa.array(~new.grid.present.all(axis=1)),
        undecoded=undecoded_names(new.grid.names, undecoded, len(new.row)),
        row=new.row, step=step if new.number is None else 2 * new.number + step, closing=new.last,
        key_before=key_before,
    )


def _deletes(old: Images, which: Index, keys: Sequence[int]) -> Changes:
    """Return a delete for each of some old rows."""
    undecoded = None if old.grid.undecoded is None else old.grid.undecoded[which]
    closing = old.alone[which]
    return Changes(
        op=pa.repeat(Op.DELETE, len(which)),
        key=old.grid.key(keys).take(pa.array(which)), before=old.grid.image().take(pa.array(which)),
        after=pa.nulls(len(which), IMAGE), partial=pa.repeat(False, len(which)),
        undecoded=undecoded_names(old.grid.names, undecoded, len(which)),
        row=old.row[which], step=None if old.number is None else 2 * old.number[which],
        closing=closing if old.last is None else closing & old.last[which],
    )
