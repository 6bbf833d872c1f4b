r"""Decode PostgreSQL's COPY text, one line per chunk row, to rows read.

Called by ``batch`` for landing rows of kind ``chunk``. Tabs and newlines inside values are escaped, so the offsets of
all tabs, as a matrix, bound the values. Guarantee: a value has the same text as in pgoutput. Layout: PostgreSQL
documentation, ``COPY``, "Text Format", as the server writes it (escapes by letter, ``\N`` for NULL).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.base.core.op import Op
from dblake.payloads.decode.columns import IMAGE
from dblake.payloads.decode.escapes import find_escapes, remove_spans
from dblake.payloads.decode.grid import Grid, spans, take, undecoded_names, with_nulls
from dblake.payloads.decode.payloads import Bytes, Changes, Index, Mask, Payloads

_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"

_UNESCAPED = np.zeros(256, np.uint8)
"""The byte that each letter after a backslash means; 0 for letters that the server does not write."""
for _letter, _byte in zip(b"bfnrtv\\", b"\b\f\n\r\t\v\\", strict=True):
    _UNESCAPED[_letter] = _byte


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the rows that chunks of one schema read. Raises ReconcileError."""
    column_numbers = payloads.columns_to_decode
    names = tuple(payloads.schema.names[column] for column in column_numbers)
    cells, null = _find_cells(payloads)
    cells, null = cells[:, column_numbers], null[:, column_numbers]
    data, bounds = _unescape(payloads, cells)
    raw = take(spans(data, bounds), 2 * np.arange(null.size))
    grid = Grid.of(names, with_nulls(raw, null.ravel()), np.ones(null.shape, np.bool_))
    keys = [names.index(n) for n in payloads.schema.primary_key]
    payloads.reject(
        grid.without(keys), "a value of the primary key is NULL",
        next_step=f"dump {payloads.schema.table} again with its current schema",
    )
    rows = len(payloads)
    return [
        Changes(
            op=pa.repeat(Op.READ, rows), key=grid.key(keys), before=pa.nulls(rows, IMAGE), after=grid.image(),
            partial=pa.repeat(False, rows), undecoded=undecoded_names(names, grid.undecoded, rows),
        )
    ]


def _find_cells(payloads: Payloads) -> tuple[Index, Mask]:
    """Return the start and end of each line's values, and which are NULL; a NULL's start is its end."""
    data, columns = payloads.data, len(payloads.schema.names)
    payloads.reject(payloads.ends == payloads.starts, "the line is empty")
    tabs = np.flatnonzero(data == _TAB)
    _reject_miscounted(payloads, tabs)
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


def _reject_miscounted(payloads: Payloads, tabs: Index) -> None:
    """Raise ReconcileError unless every payload is one whole line with one value for each column."""
    data, columns = payloads.data, len(payloads.schema.names)
    payloads.reject(data[payloads.ends - 1] != _NEWLINE, "the line does not end with a newline")
    if np.count_nonzero(data == _NEWLINE) != len(payloads):
        newlines = np.flatnonzero(data == _NEWLINE)
        payloads.reject(_count_per_row(payloads, newlines) != 1, "there is more than one line")
    if columns == 0:
        is_empty = payloads.ends - payloads.starts == 1
        payloads.reject_miscounted((~is_empty).astype(np.int64), 0, "the line", "values")
        return
    separators = columns - 1
    if len(tabs) == separators * len(payloads):
        first = tabs[::separators] if separators else tabs
        final = tabs[separators - 1 :: separators] if separators else tabs
        if not separators or ((first >= payloads.starts).all() and (final < payloads.ends).all()):
            return
    payloads.reject_miscounted(_count_per_row(payloads, tabs) + 1, columns, "the line", "values")


def _count_per_row(payloads: Payloads, offsets: Index) -> Index:
    """Return how many of some offsets lie in each row."""
    return np.bincount(np.searchsorted(payloads.ends, offsets, side="right"), minlength=len(payloads))


def _unescape(payloads: Payloads, cells: Index) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the data with its escapes resolved, and the bounds of the values in it."""
    data, bounds = payloads.data, cells.ravel()
    # A NULL's backslash lies outside the bounds of all values, so it is not among these.
    escapes, cell = find_escapes(data, bounds)
    if len(escapes) == 0:
        return data, bounds.astype(np.int32)
    unescaped = _UNESCAPED[data[escapes + 1]]
    is_unknown = unescaped == 0
    row = np.searchsorted(payloads.ends, escapes[is_unknown], side="right")
    payloads.reject(is_unknown[is_unknown], "the line has an escape that COPY does not write", rows=row)
    changed = data.copy()
    changed[escapes + 1] = unescaped
    return remove_spans(changed, bounds, escapes, cell, np.ones(len(escapes), np.int64))
