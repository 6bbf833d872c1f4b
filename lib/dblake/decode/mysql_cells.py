"""One column of many MySQL rows: where its values lie, and the text they become.

Between the two formats, which find the values (``binlog_rows``, ``mysql_rows``), and the modules that read them by
type (``mysql_numbers``, ``mysql_times``, ``mysql_text``, ``mysql_json``). Promises a gather of whole columns at a
time. NULL is known here only so that its cell is left alone: what a null cell's text is does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.grid import MOST, Grid, spans, take, too_much
from dblake.decode.payloads import Bytes, Index, Mask

#: How many bytes behind the last value may be read.
PAD = 8


@dataclass(frozen=True, slots=True)
class Cells:
    """Cell ``i`` is ``data[start[i]:start[i] + length[i]]``; starts rise, and cells do not overlap.

    ``data`` has at least PAD bytes behind the last cell. A NULL is as long as nothing.
    """

    data: Bytes
    start: Index
    length: Index
    null: Mask

    def __len__(self) -> int:
        return len(self.start)

    def some(self, rows: Index) -> Cells:
        """Cells by number, which rise."""
        return Cells(self.data, self.start[rows], self.length[rows], self.null[rows])

    def equal(self, other: Cells, width: int) -> Mask:
        """Where cells of ``width`` bytes hold the same bytes as another's, or both NULL."""
        same: Mask = self.null == other.null
        for at in range(0, width, 8):
            some = min(width - at, 8)
            same &= (self.big(at, some) == other.big(at, some)) | self.null
        return same

    def raw(self) -> pa.BinaryArray:
        """The cells' bytes, one copy."""
        bounds = np.empty(2 * len(self), np.int32)
        bounds[::2] = self.start
        bounds[1::2] = self.start + self.length
        return take(spans(self.data, bounds), 2 * np.arange(len(self)))

    def little(self, width: int) -> npt.NDArray[np.uint64]:
        """The first ``width`` bytes of every cell as a little-endian number."""
        eight = np.ndarray((len(self.data) - 7,), "<u8", self.data, 0, (1,))
        return eight[self.start] & np.uint64((1 << 8 * width) - 1)

    def big(self, at: int, width: int) -> Index:
        """``width`` bytes (up to 8) from byte ``at`` of every cell as a big-endian number; of 8, its bits."""
        eight = np.ndarray((len(self.data) - 7,), ">u8", self.data, 0, (1,))
        places = np.minimum(self.start + at, len(eight) - 1) if at else self.start
        bits = eight[places].astype(np.uint64) >> np.uint64(64 - 8 * width)
        return bits.view(np.int64)


@dataclass(frozen=True, slots=True)
class Text:
    """A column as text. ``undecoded`` marks cells that are no text and stand as hex; ``wrong`` cells no type has."""

    values: pa.StringArray
    undecoded: Mask | None = None
    wrong: Mask | None = None

    def with_some(self, rows: Index, others: Text) -> Text:
        """The same text, apart from some rows. For columns that are text throughout."""
        which = np.arange(len(self.values))
        which[rows] = len(which) + np.arange(len(rows))
        wrong = None
        if others.wrong is not None:
            wrong = np.zeros(len(which), np.bool_)
            wrong[rows] = others.wrong
        return Text(take(pa.concat_arrays([self.values, others.values]), which), wrong=wrong)


def fixed(characters: Bytes) -> pa.StringArray:
    """Rows of characters, all of one width, as text."""
    rows, width = characters.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters)))


def trimmed(characters: Bytes, lead: Index) -> pa.StringArray:
    """Rows of characters without so many in front."""
    rows, width = characters.shape
    bounds = np.empty(2 * rows, np.int32)
    begin = np.arange(0, rows * width, width)
    bounds[::2], bounds[1::2] = begin + lead, begin + width
    return take(spans(characters.reshape(-1), bounds), 2 * np.arange(rows)).view(pa.string())


def of_lengths(characters: Bytes, lengths: npt.NDArray[np.integer[npt.NBitBase]]) -> pa.StringArray:
    """Text of characters one after the other, cut by length."""
    if len(characters) > MOST:
        raise too_much("the values of a column, made text, do")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(characters))


_FOUR = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint32)
# As many as 7 bits can say; two digits never say more than 99.
_TWO = np.frombuffer(b"".join(b"%02d" % (n % 100) for n in range(128)), np.uint16)


def digits(numbers: Index, width: int) -> Bytes:
    """The last ``width`` decimal digits of numbers that are not negative, a row each."""
    if width <= 2:
        pairs: Bytes = _TWO[numbers & 127][:, None].view(np.uint8)
        return pairs[:, 2 - width :]
    groups = (width + 3) // 4
    out = np.empty((len(numbers), groups), np.uint32)
    for group in range(groups - 1, 0, -1):
        higher = numbers // 10_000
        out[:, group] = _FOUR[numbers - higher * 10_000]
        numbers = higher
    out[:, 0] = _FOUR[numbers % 10_000]
    return out.view(np.uint8)[:, 4 * groups - width :]


@lru_cache(maxsize=16)
def _row_by_row(rows: int, columns: int) -> pa.Int32Array:
    """Where the cells of columns, one column after the other, come from row by row."""
    return pa.array(np.add.outer(np.arange(rows, dtype=np.int32), rows * np.arange(columns, dtype=np.int32)).ravel())


def grid_of(
    names: tuple[str, ...], present: Sequence[int], columns: Sequence[Text], nulls: Sequence[Mask], rows: int
) -> Grid:
    """Columns side by side: some of the schema's columns, by number, of all rows."""
    shown = np.zeros((rows, len(names)), np.bool_)
    shown[:, list(present)] = True
    if not columns:
        return Grid(names, pa.array([], pa.string()), shown)
    null = np.stack(nulls, axis=1)
    if sum(column.values.nbytes for column in columns) > MOST:
        raise too_much(f"the images of {rows} rows do")
    every = pa.concat_arrays([column.values for column in columns])
    values = pc.take(every, _row_by_row(rows, len(columns)), boundscheck=False)
    if null.any():
        valid = pa.py_buffer(np.packbits(~null.ravel(), bitorder="little"))
        values = pa.StringArray.from_buffers(len(values), *values.buffers()[1:], valid)
    if all(column.undecoded is None for column in columns):
        return Grid(names, values, shown)
    undecoded = np.zeros(shown.shape, np.bool_)
    for number, column in zip(present, columns, strict=True):
        if column.undecoded is not None:
            undecoded[:, number] = column.undecoded
    return Grid(names, values, shown, undecoded)
