"""Decodes PostgreSQL's pgoutput rows: Insert, Update and Delete messages to changes.

Called by ``batch`` for landing rows of kind ``row``. All rows of a run are read in lockstep: one cursor per row, and
for each column one step of all cursors together. Promises that a message is either decoded to its last byte or
rejected, and that a column the server did not send is absent, never NULL. Layout: ``formats.pgoutput``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dblake.decode.grid import Grid, spans, take, with_nulls
from dblake.decode.payloads import Changes, Index, Mask, Payloads
from dblake.decode.row_changes import Images, row_changes
from dblake.decode.toast import fill_unchanged
from dblake.formats.pgoutput import (
    COUNT_BYTES,
    DELETE,
    INSERT,
    KEY_TUPLE,
    LENGTH_BYTES,
    LETTER_OFFSET,
    NEW_TUPLE,
    NULL,
    OLD_TUPLE,
    TEXT,
    TUPLE_OFFSET,
    UNCHANGED,
    UPDATE,
)

_MIN_BYTES = TUPLE_OFFSET + 1 + COUNT_BYTES

_BLOCK_ROWS = 8192
"""Rows whose cursors fit into the processor's cache; measured to be a third faster than all rows at once."""


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the changes of Insert, Update and Delete messages of one schema. Raises ReconcileError."""
    data, starts = payloads.data, payloads.starts
    payloads.reject(payloads.ends - starts < _MIN_BYTES, "the message is cut short")
    letter, first_tuple = data[starts + LETTER_OFFSET], data[starts + TUPLE_OFFSET]
    has_old = (first_tuple == KEY_TUPLE) | (first_tuple == OLD_TUPLE)
    has_new = first_tuple == NEW_TUPLE
    is_valid = ((letter == INSERT) & has_new) | ((letter == UPDATE) & (has_old | has_new))
    payloads.reject(~(is_valid | ((letter == DELETE) & has_old)), "the message is no Insert, Update or Delete")

    olds, news = np.flatnonzero(has_old), np.flatnonzero(letter != DELETE)
    at = starts + TUPLE_OFFSET
    old, at[olds] = _read_tuples(payloads, olds, at[olds], "old")
    payloads.reject(data.take(at[news], mode="clip") != NEW_TUPLE, "the message has no new row", rows=news)
    new, at[news] = _read_tuples(payloads, news, at[news], "new")
    payloads.reject(at != payloads.ends, "the message does not end where its last value does")

    old_of = np.full(len(payloads), -1)
    old_of[olds] = np.arange(len(olds))
    # Identity columns are never NULL: where a key tuple has a null, the column was not sent.
    old_sent = np.where((first_tuple[olds] == KEY_TUPLE)[:, None], old.tags == TEXT, old.tags != UNCHANGED)
    old_grid = old.grid(payloads, old_sent)
    new_grid = new.grid(payloads, new.tags != UNCHANGED)
    new_grid = fill_unchanged(new_grid, old_grid, old_of[news])
    return row_changes(
        payloads, Images(olds, old_grid, letter[olds] == DELETE), Images(news, new_grid, letter[news] == INSERT),
        old_of[news],
        key_missing=f"ALTER TABLE {payloads.schema.table} REPLICA IDENTITY DEFAULT, then dump the table again",
    )


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Bounds of the values of tuples: from bound ``2 i`` to ``2 i + 1`` for cell ``i``, counted row by row."""

    tags: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int32]

    def grid(self, payloads: Payloads, present: Mask) -> Grid:
        """Return the present cells as text."""
        every = spans(payloads.data, self.bounds.ravel())
        raw = take(every, 2 * np.flatnonzero(present))
        return Grid.of(payloads.schema.names, with_nulls(raw, self.tags[present] == NULL), present)


def _read_tuples(payloads: Payloads, rows: Index, at: Index, which: str) -> tuple[_Tuples, Index]:
    """Read one tuple of each row from its letter on. Returns the tuples' end offsets as well."""
    columns = len(payloads.schema.names)
    counts = payloads.data.take(at + 1, mode="clip").astype(np.int64) << 8 | payloads.data.take(at + 2, mode="clip")
    payloads.reject_miscounted(counts, columns, f"the {which} row", "columns", rows=rows)
    tags = np.empty((len(rows), columns), np.uint8)
    bounds = np.empty((len(rows), 2 * columns), np.int32)
    ends = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        ends[block] = _read_values(payloads, at[block] + 1 + COUNT_BYTES, tags[block], bounds[block])
    payloads.reject(ends > payloads.ends[rows], f"the {which} row reaches past the end of the message", rows=rows)
    is_known = (tags == TEXT) | (tags == NULL) | (tags == UNCHANGED)
    payloads.reject(~is_known.all(axis=1), f"the {which} row has a value that is not text", rows=rows)
    return _Tuples(tags, bounds), ends


def _read_values(
    payloads: Payloads, cursor: Index, tags: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int32]
) -> Index:
    """Fill tags and bounds, one step of all cursors per column. Returns the cursors behind the last column.

    Reads are clipped to the buffer, not checked: a cursor only moves forward, so one that ever left its row ends
    past it, which the caller detects.
    """
    data = payloads.data
    lengths = np.ndarray((max(len(data) - 3, 0),), ">u4", data, 0, (1,))
    for column in range(tags.shape[1]):
        tag = data.take(cursor, mode="clip")
        is_text = tag == TEXT
        length = lengths[np.minimum(cursor + 1, len(lengths) - 1)].astype(np.int64)
        cursor = cursor + (1 + LENGTH_BYTES * is_text)
        bounds[:, 2 * column] = cursor
        cursor = cursor + length * is_text
        bounds[:, 2 * column + 1] = cursor
        tags[:, column] = tag
    return cursor
