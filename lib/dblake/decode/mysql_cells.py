"""One column of many MySQL rows: the offsets of its values, and the text they become.

Between the two formats, which find the values (``binlog_rows``, ``mysql_rows``), and the modules that read them by
type (``mysql_numbers``, ``mysql_times``, ``mysql_text``, ``mysql_json``). Promises to read whole columns at a time.
NULLs are marked here, and set by ``grid_of``: the text of a null cell is arbitrary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.grid import MAX_ARRAY_BYTES, Grid, batch_too_large, spans, take
from dblake.decode.payloads import Bytes, Index, Mask

PAD_BYTES = 8
"""Bytes behind the last value that may be read."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a column: ``data[start[i]:start[i] + length[i]]``; starts rise, and cells do not overlap.

    ``data`` has at least PAD_BYTES behind the last cell. The length of a NULL is 0.
    """

    data: Bytes
    start: Index
    length: Index
    null: Mask

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Index) -> Cells:
        """Return cells by number; the numbers rise."""
        return Cells(self.data, self.start[rows], self.length[rows], self.null[rows])

    def equal(self, other: Cells, width: int) -> Mask:
        """Return where cells of ``width`` bytes hold the same bytes as another column's, or both are NULL."""
        same: Mask = self.null == other.null
        for at in range(0, width, 8):
            size = min(width - at, 8)
            same &= (self.big(at, size) == other.big(at, size)) | self.null
        return same

    def raw(self) -> pa.BinaryArray:
        """Return a copy of the cells' bytes."""
        bounds = np.empty(2 * len(self), np.int32)
        bounds[::2] = self.start
        bounds[1::2] = self.start + self.length
        return take(spans(self.data, bounds), 2 * np.arange(len(self)))

    def little(self, width: int) -> npt.NDArray[np.uint64]:
        """Return the first ``width`` bytes of every cell as a little-endian number."""
        words = np.ndarray((len(self.data) - 7,), "<u8", self.data, 0, (1,))
        return words[self.start] & np.uint64((1 << 8 * width) - 1)

    def big(self, at: int, width: int) -> Index:
        """Return ``width`` bytes (up to 8) from byte ``at`` of every cell as a big-endian number; of 8, its bits."""
        words = np.ndarray((len(self.data) - 7,), ">u8", self.data, 0, (1,))
        offsets = np.minimum(self.start + at, len(words) - 1) if at else self.start
        bits = words[offsets].astype(np.uint64) >> np.uint64(64 - 8 * width)
        return bits.view(np.int64)


@dataclass(frozen=True, slots=True)
class Text:
    """A column as text.

    ``undecoded`` marks cells that are not valid text and hold hex digits; ``wrong`` cells whose bytes are no value of
    the column's type.
    """

    values: pa.StringArray
    undecoded: Mask | None = None
    wrong: Mask | None = None

    def replace_rows(self, rows: Index, others: Text) -> Text:
        """Return the text with some rows replaced. For columns without undecoded cells."""
        which = np.arange(len(self.values))
        which[rows] = len(which) + np.arange(len(rows))
        wrong = None
        if others.wrong is not None:
            wrong = np.zeros(len(which), np.bool_)
            wrong[rows] = others.wrong
        return Text(take(pa.concat_arrays([self.values, others.values]), which), wrong=wrong)


def fixed(characters: Bytes) -> pa.StringArray:
    """Return rows of characters, all of one width, as text."""
    rows, width = characters.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters)))


def trimmed(characters: Bytes, lead: Index) -> pa.StringArray:
    """Return rows of characters as text, each without its first ``lead`` ones."""
    rows, width = characters.shape
    bounds = np.empty(2 * rows, np.int32)
    begin = np.arange(0, rows * width, width)
    bounds[::2], bounds[1::2] = begin + lead, begin + width
    return take(spans(characters.reshape(-1), bounds), 2 * np.arange(rows)).view(pa.string())


def of_lengths(characters: Bytes, lengths: npt.NDArray[np.integer[npt.NBitBase]]) -> pa.StringArray:
    """Return consecutive characters as text, split by length. Raises ReconcileError above 2 GiB."""
    if len(characters) > MAX_ARRAY_BYTES:
        raise batch_too_large("the values of a column")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(characters))


_FOUR = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint32)
_TWO = np.frombuffer(b"".join(b"%02d" % (n % 100) for n in range(128)), np.uint16)
"""For all numbers of 7 bits; those above 99 do not occur."""


def digits(numbers: Index, width: int) -> Bytes:
    """Return the last ``width`` decimal digits of non-negative numbers, a row each."""
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
def _row_major(rows: int, columns: int) -> pa.Int32Array:
    """Return the indexes that bring the cells of concatenated columns into row order."""
    return pa.array(np.add.outer(np.arange(rows, dtype=np.int32), rows * np.arange(columns, dtype=np.int32)).ravel())


def grid_of(
    names: tuple[str, ...], present: Sequence[int], columns: Sequence[Text], nulls: Sequence[Mask], rows: int
) -> Grid:
    """Return the grid of some of the schema's columns, given by number, for all rows."""
    is_present = np.zeros((rows, len(names)), np.bool_)
    is_present[:, list(present)] = True
    if not columns:
        return Grid(names, pa.array([], pa.string()), is_present)
    null = np.stack(nulls, axis=1)
    if sum(column.values.nbytes for column in columns) > MAX_ARRAY_BYTES:
        raise batch_too_large(f"the images of {rows} rows")
    every = pa.concat_arrays([column.values for column in columns])
    values = pc.take(every, _row_major(rows, len(columns)), boundscheck=False)
    if null.any():
        valid = pa.py_buffer(np.packbits(~null.ravel(), bitorder="little"))
        values = pa.StringArray.from_buffers(len(values), *values.buffers()[1:], valid)
    if all(column.undecoded is None for column in columns):
        return Grid(names, values, is_present)
    undecoded = np.zeros(is_present.shape, np.bool_)
    for number, column in zip(present, columns, strict=True):
        if column.undecoded is not None:
            undecoded[:, number] = column.undecoded
    return Grid(names, values, is_present, undecoded)
