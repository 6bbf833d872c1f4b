"""Find the rows of rows events.

Called by ``binlog_rows``. A row's length is known only once it has been read, and rows follow one another. So all
events are walked together: the first row of each event, then the second row of each event that has two, and so on.
Guarantee: a cursor that leaves its event is detected. The layout of a row is left to ``binlog_image``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dblake.payloads.decode.binlog_image import Image
from dblake.payloads.decode.payloads import Bytes, Index, Mask, Payloads

MAX_ROWS = 2**19
"""Rows with greater numbers would have the ``seq`` of the next rows event."""


@dataclass(frozen=True, slots=True)
class RowOffsets:
    """Rows in the order of their events: offsets of each image, the event, the row's number in it, if it is last."""

    starts: Sequence[Index]
    event: Index
    number: Index
    last: Mask

    def slice(self, start: int, end: int) -> RowOffsets:
        """Return the rows with the numbers from ``start`` up to ``end``."""
        rows = slice(start, end)
        return RowOffsets([s[rows] for s in self.starts], self.event[rows], self.number[rows], self.last[rows])


def find_rows(payloads: Payloads, data: Bytes, events: Index, row_starts: Index, images: Sequence[Image]) -> RowOffsets:
    """Return all rows of some events. Raises ReconcileError for an event that does not end where a row does."""
    ends = payloads.ends[events]
    which, cursor = np.flatnonzero(row_starts < ends), row_starts[row_starts < ends]
    starts: list[list[Index]] = [[] for _ in images]
    rows: list[Index] = []
    if not any(image.bitmap for image in images):
        payloads.reject(row_starts < ends, "the event has rows without columns", rows=events)
    while len(which):
        if len(rows) == MAX_ROWS:
            payloads.reject(cursor > 0, f"the event has more than {MAX_ROWS} rows", rows=events[which])
        for image, image_starts in zip(images, starts, strict=True):
            image_starts.append(cursor)
            cursor = image.end_offsets(data, cursor)
        rows.append(which)
        rest = ends[which] - cursor
        least = rest.min()
        if least < 0:
            payloads.reject(rest < 0, "a row reaches past the end of the event", rows=events[which])
        if least == 0:
            has_more = rest > 0
            which, cursor = which[has_more], cursor[has_more]
    return _in_order(events, starts, rows)


def _in_order(events: Index, starts: Sequence[Sequence[Index]], rows: Sequence[Index]) -> RowOffsets:
    if not rows:
        none = np.zeros(0, np.int64)
        return RowOffsets([none for _ in starts], none, none, none.astype(np.bool_))
    number = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    joined = [np.concatenate(s) for s in starts]
    which = np.concatenate(rows)
    if len(rows) > 1:
        order = np.argsort(joined[0])
        number, joined, which = number[order], [j[order] for j in joined], which[order]
    last = np.append(which[1:] != which[:-1], True)
    return RowOffsets(joined, events[which], number, last)
