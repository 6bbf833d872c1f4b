"""Finds the rows of rows events, and the values of a row.

Called by ``binlog_rows``. A row's length is known only once it has been read, and rows follow one another, so all
events are walked together: the first row of each, then the second of those that have one, and so on. To keep such a
step short it reads only null bitmaps and the lengths of values that have one; the width of the columns between comes
from a table by bitmap byte. Promises that a cursor which leaves its event is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dblake.decode.binlog_columns import Storage
from dblake.decode.mysql_cells import Cells
from dblake.decode.payloads import Bytes, Index, Mask, Payloads

MAX_ROWS = 2**19
"""Rows with greater numbers would have the ``seq`` of the next rows event."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Columns of fixed width, then one of variable width, if any.

    ``widths`` has, for a byte of the null bitmap, the bytes that the fixed columns take for each value of it.
    ``column`` is the number of the variable one, ``prefix`` the bytes of its length.
    """

    widths: Sequence[tuple[int, Index]]
    column: int | None
    prefix: int


@dataclass(frozen=True, slots=True)
class Image:
    """The layout of a row's image: a bit for each present column, then the values that are not NULL."""

    columns: Sequence[Storage]
    bitmap: int
    steps: Sequence[_Step]

    @classmethod
    def of(cls, columns: Sequence[Storage]) -> Image:
        """Return the layout of an image with these columns."""
        steps: list[_Step] = []
        run: list[int] = []
        for number, column in enumerate(columns):
            if column.is_variable:
                steps.append(_Step(_widths(columns, run), number, column.width))
                run = []
            else:
                run.append(number)
        if run:
            steps.append(_Step(_widths(columns, run), None, 0))
        return cls(columns, (len(columns) + 7) // 8, steps)

    def end_offsets(self, data: Bytes, at: Index) -> Index:
        """Return the ends of the images that begin at some offsets; may be past the data."""
        bits = [data.take(at + byte, mode="clip") for byte in range(self.bitmap)]
        at = at + self.bitmap
        for step in self.steps:
            for byte, widths in step.widths:
                at = at + widths[bits[byte]]
            if step.column is not None:
                sent = (bits[step.column >> 3] >> (step.column & 7) & 1) == 0
                at = at + (step.prefix + _read_lengths(data, at, step.prefix)) * sent
        return at

    def cells(self, data: Bytes, at: Index) -> Iterator[Cells]:
        """Yield every column of the images that begin at some offsets."""
        bits = [data.take(at + byte, mode="clip") for byte in range(self.bitmap)]
        at = at + self.bitmap
        for number, column in enumerate(self.columns):
            null = (bits[number >> 3] >> (number & 7) & 1) != 0
            length: Index | int = column.width
            if column.is_variable:
                length = _read_lengths(data, at, column.width)
                at = at + column.width * ~null
            lengths = length * ~null
            yield Cells(data, at, lengths, null)
            at = at + lengths


@dataclass(frozen=True, slots=True)
class RowOffsets:
    """Rows in the order of their events: offsets of each image, the event, the row's number in it, if it is last."""

    starts: Sequence[Index]
    event: Index
    number: Index
    last: Mask

    def slice(self, start: int, end: int) -> RowOffsets:
        """Return some of the rows."""
        rows = slice(start, end)
        return RowOffsets([s[rows] for s in self.starts], self.event[rows], self.number[rows], self.last[rows])


def find_rows(payloads: Payloads, data: Bytes, events: Index, at: Index, images: Sequence[Image]) -> RowOffsets:
    """Return all rows of some events. Raises ReconcileError for an event that does not end where a row does."""
    ends = payloads.ends[events]
    which, cursor = np.flatnonzero(at < ends), at[at < ends]
    starts: list[list[Index]] = [[] for _ in images]
    rows: list[Index] = []
    if not any(image.bitmap for image in images):
        payloads.reject(at < ends, "the event has rows without columns", rows=events)
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


def _widths(columns: Sequence[Storage], run: Sequence[int]) -> list[tuple[int, Index]]:
    """Return, for each bitmap byte and each of its values, the bytes of those columns that are not NULL."""
    out: dict[int, Index] = {}
    every = np.arange(256)
    for number in run:
        sent = (every >> (number & 7) & 1) == 0
        out[number >> 3] = out.get(number >> 3, np.zeros(256, np.int64)) + sent * columns[number].width
    return list(out.items())


def _read_lengths(data: Bytes, at: Index, width: int) -> Index:
    """Return the little-endian lengths at some offsets."""
    out = data.take(at, mode="clip").astype(np.int64)
    for byte in range(1, width):
        out |= data.take(at + byte, mode="clip").astype(np.int64) << 8 * byte
    return out
