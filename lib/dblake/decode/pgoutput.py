"""PostgreSQL's pgoutput rows: Insert, Update and Delete messages to changes.

Called by ``batch`` for landing rows of kind ``row``. All rows of a run are read in lockstep: one cursor per row, and
for each column one step of all cursors together. Promises that a message is either understood to its last byte or
refused, and that a column the server did not send is absent, never NULL. Layout: PostgreSQL documentation, "Logical
Replication Message Formats", protocol version 1, values as text.
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

_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _KEY, _OLD = b"NKO"
_TEXT, _NULL, _UNCHANGED = b"tnu"

# Type letter, relation number, tuple letter and column count.
_SHORTEST = 8
_TUPLE = 5

# Rows whose cursors fit the processor's cache together; measured to be a third faster than all rows at once.
_BLOCK = 8192


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Changes of Insert, Update and Delete messages of one schema."""
    data, starts = payloads.data, payloads.starts
    payloads.refuse(payloads.ends - starts < _SHORTEST, "the message is cut short")
    letter, shape = data[starts], data[starts + _TUPLE]
    old_known = (shape == _KEY) | (shape == _OLD)
    understood = ((letter == _INSERT) & (shape == _NEW)) | ((letter == _UPDATE) & (old_known | (shape == _NEW)))
    payloads.refuse(~(understood | ((letter == _DELETE) & old_known)), "the message is no Insert, Update or Delete")

    olds, news = np.flatnonzero(old_known), np.flatnonzero(letter != _DELETE)
    at = starts + _TUPLE
    old, at[olds] = _tuples(payloads, olds, at[olds], "old")
    payloads.refuse(data.take(at[news], mode="clip") != _NEW, "the message has no new row", rows=news)
    new, at[news] = _tuples(payloads, news, at[news], "new")
    payloads.refuse(at != payloads.ends, "the message does not end where its last value does")

    old_of = np.full(len(payloads), -1)
    old_of[olds] = np.arange(len(olds))
    # Identity columns are never NULL: where a key tuple has a null, the column was not sent.
    old_sent = np.where((shape[olds] == _KEY)[:, None], old.tags == _TEXT, old.tags != _UNCHANGED)
    old_grid = old.grid(payloads, old_sent)
    new_grid = new.grid(payloads, new.tags != _UNCHANGED)
    new_grid = fill_unchanged(new_grid, old_grid, old_of[news])
    return row_changes(
        payloads, Images(olds, old_grid, letter[olds] == _DELETE), Images(news, new_grid, letter[news] == _INSERT),
        old_of[news],
        key_missing=f"ALTER TABLE {payloads.schema.table} REPLICA IDENTITY DEFAULT, then dump the table again",
    )


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Where the values of tuples lie: from bound ``2 i`` to ``2 i + 1`` for cell ``i``, counted row by row."""

    tags: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int32]

    def grid(self, payloads: Payloads, present: Mask) -> Grid:
        """The cells that are present, as text."""
        every = spans(payloads.data, self.bounds.ravel())
        raw = take(every, 2 * np.flatnonzero(present))
        return Grid.of(payloads.schema.names, with_nulls(raw, self.tags[present] == _NULL), present)


def _tuples(payloads: Payloads, rows: Index, at: Index, which: str) -> tuple[_Tuples, Index]:
    """Reads one tuple of each row from its letter on; returns where the tuples end, which may lie past the row."""
    columns = len(payloads.schema.names)
    counts = payloads.data.take(at + 1, mode="clip").astype(np.int64) << 8 | payloads.data.take(at + 2, mode="clip")
    payloads.refuse(counts != columns, f"the {which} row has not the {columns} columns of its schema", rows=rows)
    tags = np.empty((len(rows), columns), np.uint8)
    bounds = np.empty((len(rows), 2 * columns), np.int32)
    ends = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        ends[block] = _lockstep(payloads, at[block] + 3, tags[block], bounds[block])
    beyond = ends > payloads.ends[rows]
    payloads.refuse(beyond, f"the {which} row reaches past the end of the message", rows=rows)
    known = (tags == _TEXT) | (tags == _NULL) | (tags == _UNCHANGED)
    payloads.refuse(~known.all(axis=1), f"the {which} row has a value that is not text", rows=rows)
    return _Tuples(tags, bounds), ends


def _lockstep(
    payloads: Payloads, cursor: Index, tags: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int32]
) -> Index:
    """One step of all cursors per column.

    Reads are clipped to the buffer, not checked: a cursor only moves forward, so one that ever left its row ends
    past it, and that is seen at the end.
    """
    data = payloads.data
    lengths = np.ndarray((max(len(data) - 3, 0),), ">u4", data, 0, (1,))
    for column in range(tags.shape[1]):
        tag = data.take(cursor, mode="clip")
        is_text = tag == _TEXT
        length = lengths[np.minimum(cursor + 1, len(lengths) - 1)].astype(np.int64)
        cursor = cursor + (1 + 4 * is_text)
        bounds[:, 2 * column] = cursor
        cursor = cursor + length * is_text
        bounds[:, 2 * column + 1] = cursor
        tags[:, column] = tag
    return cursor
