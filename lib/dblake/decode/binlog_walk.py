"""Where the rows of rows events begin, and where the values of a row lie.

Called by ``binlog_rows``. A row's length is known only once it has been read, and rows follow one another, so all
events are walked together: the first row of each, then the second of those that have one, and so on. To make such a
step short it reads only null bitmaps and the lengths of values that have one; what lies between is looked up by
bitmap byte. Promises that no cursor leaves its event unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dblake.decode.binlog_columns import Stored
from dblake.decode.mysql_cells import Cells
from dblake.decode.payloads import Bytes, Index, Mask, Payloads

#: Rows numbered higher would share the ``seq`` of the next rows event.
MOST_ROWS = 2**19


@dataclass(frozen=True, slots=True)
class _Step:
    """Columns without lengths of their own, then one with: ``widths`` has for a bitmap byte and its value the bytes
    such columns take."""

    widths: Sequence[tuple[int, Index]]
    column: int | None
    prefix: int


@dataclass(frozen=True, slots=True)
class Image:
    """How a row's image is laid out: a bit for each present column, then the values that are not NULL."""

    columns: Sequence[Stored]
    bitmap: int
    steps: Sequence[_Step]

    @classmethod
    def of(cls, columns: Sequence[Stored]) -> Image:
        """The layout of an image with these columns."""
        steps: list[_Step] = []
        run: list[int] = []
        for number, column in enumerate(columns):
            if column.varies:
                steps.append(_Step(_widths(columns, run), number, column.width))
                run = []
            else:
                run.append(number)
        if run:
            steps.append(_Step(_widths(columns, run), None, 0))
        return cls(columns, (len(columns) + 7) // 8, steps)

    def past(self, data: Bytes, at: Index) -> Index:
        """Where images that begin somewhere end; may lie past the data."""
        bits = [data.take(at + byte, mode="clip") for byte in range(self.bitmap)]
        at = at + self.bitmap
        for step in self.steps:
            for byte, widths in step.widths:
                at = at + widths[bits[byte]]
            if step.column is not None:
                sent = (bits[step.column >> 3] >> (step.column & 7) & 1) == 0
                at = at + (step.prefix + _length(data, at, step.prefix)) * sent
        return at

    def cells(self, data: Bytes, at: Index) -> Iterator[Cells]:
        """Every column of images that begin somewhere."""
        bits = [data.take(at + byte, mode="clip") for byte in range(self.bitmap)]
        at = at + self.bitmap
        for number, column in enumerate(self.columns):
            null = (bits[number >> 3] >> (number & 7) & 1) != 0
            length: Index | int = column.width
            if column.varies:
                length = _length(data, at, column.width)
                at = at + column.width * ~null
            lengths = length * ~null
            yield Cells(data, at, lengths, null)
            at = at + lengths


@dataclass(frozen=True, slots=True)
class Walked:
    """Rows in the order of their events: where each image begins, the event, the row's number in it, if it is last."""

    starts: Sequence[Index]
    event: Index
    number: Index
    last: Mask

    def slice(self, start: int, end: int) -> Walked:
        """Some of the rows."""
        some = slice(start, end)
        return Walked([s[some] for s in self.starts], self.event[some], self.number[some], self.last[some])


def walk(payloads: Payloads, data: Bytes, events: Index, at: Index, images: Sequence[Image]) -> Walked:
    """All rows of some events. Raises the payloads' refusal for an event that does not end where a row does."""
    ends = payloads.ends[events]
    which, cursor = np.flatnonzero(at < ends), at[at < ends]
    starts: list[list[Index]] = [[] for _ in images]
    rows: list[Index] = []
    if not any(image.bitmap for image in images):
        payloads.refuse(at < ends, "the event has rows without columns", rows=events)
    while len(which):
        if len(rows) == MOST_ROWS:
            payloads.refuse(cursor > 0, f"the event has more than {MOST_ROWS} rows", rows=events[which])
        for image, where in zip(images, starts, strict=True):
            where.append(cursor)
            cursor = image.past(data, cursor)
        rows.append(which)
        left = ends[which] - cursor
        least = left.min()
        if least < 0:
            payloads.refuse(left < 0, "a row reaches past the end of the event", rows=events[which])
        if least == 0:
            going = left > 0
            which, cursor = which[going], cursor[going]
    return _in_order(events, starts, rows)


def _in_order(events: Index, starts: Sequence[Sequence[Index]], rows: Sequence[Index]) -> Walked:
    if not rows:
        none = np.zeros(0, np.int64)
        return Walked([none for _ in starts], none, none, none.astype(np.bool_))
    number = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    joined = [np.concatenate(s) for s in starts]
    which = np.concatenate(rows)
    if len(rows) > 1:
        order = np.argsort(joined[0])
        number, joined, which = number[order], [j[order] for j in joined], which[order]
    last = np.append(which[1:] != which[:-1], True)
    return Walked(joined, events[which], number, last)


def _widths(columns: Sequence[Stored], run: Sequence[int]) -> list[tuple[int, Index]]:
    """For each bitmap byte and each of its values what the columns of a run take that are not NULL."""
    out: dict[int, Index] = {}
    every = np.arange(256)
    for number in run:
        sent = (every >> (number & 7) & 1) == 0
        out[number >> 3] = out.get(number >> 3, np.zeros(256, np.int64)) + sent * columns[number].width
    return list(out.items())


def _length(data: Bytes, at: Index, width: int) -> Index:
    """Little-endian lengths."""
    out = data.take(at, mode="clip").astype(np.int64)
    for byte in range(1, width):
        out |= data.take(at + byte, mode="clip").astype(np.int64) << 8 * byte
    return out
