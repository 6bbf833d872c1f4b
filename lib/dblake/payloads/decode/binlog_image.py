"""The layout of a row's image in a rows event: where its values are, for many rows in one step.

Place: below ``binlog_walk``, which finds the rows, and ``binlog_rows``, which reads their columns. A step of the walk
must be short, so an image's end follows from its null bitmap and the lengths of its variable values alone. A table by
bitmap byte has the total width of the fixed columns between them. An offset may be past the data: the caller checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dblake.payloads.decode.binlog_columns import CellStorage
from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.payloads import Bytes, Index


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

    columns: Sequence[CellStorage]
    bitmap: int
    steps: Sequence[_Step]

    @classmethod
    def of(cls, columns: Sequence[CellStorage]) -> Image:
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

    def end_offsets(self, data: Bytes, offsets: Index) -> Index:
        """Return the ends of the images that begin at some offsets; may be past the data."""
        bits = [data.take(offsets + byte, mode="clip") for byte in range(self.bitmap)]
        offsets = offsets + self.bitmap
        for step in self.steps:
            for byte, widths in step.widths:
                offsets = offsets + widths[bits[byte]]
            if step.column is not None:
                sent = (bits[step.column >> 3] >> (step.column & 7) & 1) == 0
                offsets = offsets + (step.prefix + _read_lengths(data, offsets, step.prefix)) * sent
        return offsets

    def cells(self, data: Bytes, offsets: Index) -> Iterator[Cells]:
        """Yield every column of the images that begin at some offsets."""
        bits = [data.take(offsets + byte, mode="clip") for byte in range(self.bitmap)]
        offsets = offsets + self.bitmap
        for number, column in enumerate(self.columns):
            null = (bits[number >> 3] >> (number & 7) & 1) != 0
            length: Index | int = column.width
            if column.is_variable:
                length = _read_lengths(data, offsets, column.width)
                offsets = offsets + column.width * ~null
            lengths = length * ~null
            yield Cells(data, offsets, lengths, null)
            offsets = offsets + lengths


def _widths(columns: Sequence[CellStorage], run: Sequence[int]) -> list[tuple[int, Index]]:
    """Return, for each bitmap byte and each of its values, the bytes of those columns that are not NULL."""
    out: dict[int, Index] = {}
    every = np.arange(256)
    for number in run:
        sent = (every >> (number & 7) & 1) == 0
        out[number >> 3] = out.get(number >> 3, np.zeros(256, np.int64)) + sent * columns[number].width
    return list(out.items())


def _read_lengths(data: Bytes, offsets: Index, width: int) -> Index:
    """Return the little-endian lengths at some offsets."""
    out = data.take(offsets, mode="clip").astype(np.int64)
    for byte in range(1, width):
        out |= data.take(offsets + byte, mode="clip").astype(np.int64) << 8 * byte
    return out
