"""PostgreSQL's COPY text: one line per chunk row to rows read.

Called by ``batch`` for landing rows of kind ``chunk``. Tabs and newlines inside values are escaped, so the tabs of
all lines together, put in rows, are the table. Promises the same text for a value as pgoutput sends for it. Layout:
PostgreSQL documentation, ``COPY``, "Text Format", as the server writes it (escapes by letter, ``\\N`` for NULL).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.decode.columns import IMAGE, READ
from dblake.decode.escapes import announcing, without
from dblake.decode.grid import Grid, spans, take, undecoded_names, with_nulls
from dblake.decode.payloads import Bytes, Changes, Index, Mask, Payloads

_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"

#: What stands after a backslash, to the byte it means; 0 is no escape the server writes.
_MEANS = np.zeros(256, np.uint8)
for _letter, _byte in zip(b"bfnrtv\\", b"\b\f\n\r\t\v\\", strict=True):
    _MEANS[_letter] = _byte


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Rows read by chunks of one schema."""
    names = payloads.schema.names
    cells, null = _cells(payloads)
    data, bounds = _unescaped(payloads, cells)
    raw = take(spans(data, bounds), 2 * np.arange(null.size))
    grid = Grid.of(names, with_nulls(raw, null.ravel()), np.ones(null.shape, np.bool_))
    keys = [names.index(n) for n in payloads.schema.primary_key]
    payloads.refuse(
        grid.without(keys), "a value of the primary key is NULL",
        next_step=f"dump {payloads.schema.table} again with the schema it has now",
    )
    rows = len(payloads)
    return [
        Changes(
            op=pa.repeat(READ, rows), key=grid.key(keys), before=pa.nulls(rows, IMAGE), after=grid.image(),
            partial=pa.repeat(False, rows), undecoded=undecoded_names(names, grid.undecoded, rows),
        )
    ]


def _cells(payloads: Payloads) -> tuple[Index, Mask]:
    """Where each line's values start and end, by turns, and which are NULL; a NULL is as long as nothing."""
    data, columns = payloads.data, len(payloads.schema.names)
    payloads.refuse(payloads.ends == payloads.starts, "the line is empty")
    tabs = np.flatnonzero(data == _TAB)
    _refuse_miscounted(payloads, tabs)
    between = tabs.reshape(len(payloads), max(columns - 1, 0))
    cells = np.empty((len(payloads), columns, 2), np.int64)
    if columns:
        cells[:, 0, 0] = payloads.starts
        cells[:, 1:, 0] = between + 1
        cells[:, :-1, 1] = between
        cells[:, -1, 1] = payloads.ends - 1
    start = cells[:, :, 0]
    null = cells[:, :, 1] - start == 2
    null[null] = (data[start[null]] == _BACKSLASH) & (data[start[null] + 1] == ord("N"))
    start[null] += 2
    return cells, null


def _refuse_miscounted(payloads: Payloads, tabs: Index) -> None:
    """Every payload is one whole line with as many values as its schema has columns."""
    data, columns = payloads.data, len(payloads.schema.names)
    payloads.refuse(data[payloads.ends - 1] != _NEWLINE, "the line does not end with a newline")
    if np.count_nonzero(data == _NEWLINE) != len(payloads):
        newlines = np.flatnonzero(data == _NEWLINE)
        payloads.refuse(_per_row(payloads, newlines) != 1, "there is more than one line")
    what = f"the line has not the {columns} values of its schema"
    if columns == 0:
        payloads.refuse(payloads.ends - payloads.starts != 1, what)
        return
    wanted = columns - 1
    if len(tabs) == wanted * len(payloads):
        first, final = tabs[::wanted] if wanted else tabs, tabs[wanted - 1 :: wanted] if wanted else tabs
        if not wanted or ((first >= payloads.starts).all() and (final < payloads.ends).all()):
            return
    payloads.refuse(_per_row(payloads, tabs) != wanted, what)


def _per_row(payloads: Payloads, places: Index) -> Index:
    """How many of some places in the data lie in each row."""
    return np.bincount(np.searchsorted(payloads.ends, places, side="right"), minlength=len(payloads))


def _unescaped(payloads: Payloads, cells: Index) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """The data without backslashes that only announce a byte, and where the values lie in it."""
    data, bounds = payloads.data, cells.ravel()
    # Values hold no raw separators, so that bounds and values tell a NULL's backslash by its place outside both.
    found, cell = announcing(data, bounds)
    if len(found) == 0:
        return data, bounds.astype(np.int32)
    means = _MEANS[data[found + 1]]
    row = np.searchsorted(payloads.ends, found[means == 0], side="right")
    payloads.refuse(means[means == 0] == 0, "the line has an escape that COPY does not write", rows=row)
    changed = data.copy()
    changed[found + 1] = means
    return without(changed, bounds, found, cell, np.ones(len(found), np.int64))
