"""Rows of one table as text: build keys and images from the values that a format has located.

Between the formats, which find the values, and the maps of events. Guarantee: Arrow copies each value once and
validates it once as UTF-8, also if several images contain it. The meaning of a missing value is left to the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import ReconcileError
from dblake.payloads.decode.columns import IMAGE
from dblake.payloads.decode.payloads import Bytes, Index, Mask

_BLOCK_VALUES = 1024
MAX_ARRAY_BYTES = 2**31 - 1
"""The bytes that one Arrow array with 32-bit offsets may hold."""


def spans(data: Bytes, bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """Return a view of the data as binary array; element ``i`` lies between bound ``i`` and ``i + 1``. Bounds rise."""
    if len(bounds) == 0:
        return pa.array([], pa.binary())
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(np.ascontiguousarray(bounds)), pa.py_buffer(data)]
    )


def take(values: pa.Array, index: Index | Mask) -> pa.Array:
    """Return elements by number, without Arrow's check of the numbers."""
    return pc.take(values, pa.array(index.astype(np.int32, copy=False)), boundscheck=False)


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows × columns of text. ``values`` holds the present cells row by row; NULL is a null among them.

    ``undecoded`` marks cells that are not valid text and hold hex digits instead; None if there are none.
    """

    names: tuple[str, ...]
    values: pa.StringArray
    present: Mask
    undecoded: Mask | None = None

    @classmethod
    def of(cls, names: tuple[str, ...], raw: pa.BinaryArray, present: Mask) -> Grid:
        """Return the grid of the present cells' bytes, given row by row."""
        try:
            return cls(names, raw.cast(pa.string()), present)
        except pa.ArrowInvalid:
            text, wrong = text_or_hex(raw)
            undecoded = np.zeros(present.shape, np.bool_)
            undecoded[present] = wrong
            return cls(names, text, present, undecoded)

    def __len__(self) -> int:
        return len(self.present)

    def image(self) -> pa.MapArray:
        """Return every row's present columns as a map."""
        keys = _tile(self.names, len(self))
        if self.present.all():
            ends = np.arange(len(self) + 1, dtype=np.int64) * len(self.names)
        else:
            keys = keys.filter(pa.array(self.present.ravel()))
            ends = np.append(0, np.cumsum(self.present.sum(axis=1)))
        return _map(ends, keys, self.values)

    def key(self, columns: Sequence[int]) -> pa.MapArray:
        """Return every row's key as a map, with these columns in this order, which must be present; null if none."""
        if not columns:
            return pa.nulls(len(self), IMAGE)
        ends = np.arange(len(self) + 1, dtype=np.int64) * len(columns)
        return _map(ends, _tile([self.names[c] for c in columns], len(self)), self._cells(columns))

    def without(self, columns: Sequence[int]) -> Mask:
        """Return which rows lack one of these columns or have NULL in it."""
        lacking = ~self.present[:, columns]
        if self.values.null_count:
            null = np.zeros(self.present.shape, np.bool_)
            null[self.present] = self.values.is_null().to_numpy(zero_copy_only=False)
            lacking |= null[:, columns]
        return np.asarray(lacking.any(axis=1))

    def differs(self, rows: Index, other: Grid, other_rows: Index, columns: Sequence[int]) -> Mask:
        """Return where rows of this grid and of another differ, byte for byte, in columns that both have."""
        unequal = pc.not_equal(self._cells(columns, rows), other._cells(columns, other_rows))
        out = unequal.to_numpy(zero_copy_only=False).reshape(len(rows), len(columns))
        if self.undecoded is not None or other.undecoded is not None:
            # Text that reads like the hex of other bytes is not equal to them.
            out = out | (self._undecoded_cells(rows, columns) != other._undecoded_cells(other_rows, columns))
        return np.asarray(out.any(axis=1))

    def _undecoded_cells(self, rows: Index, columns: Sequence[int]) -> Mask:
        if self.undecoded is None:
            return np.zeros((len(rows), len(columns)), np.bool_)
        return np.asarray(self.undecoded[rows][:, columns])

    def _cells(self, columns: Sequence[int], rows: Index | None = None) -> pa.StringArray:
        """Return the present cells of some columns, row by row, of all rows or some."""
        chosen = np.arange(len(self)) if rows is None else rows
        cells = np.add.outer(chosen * len(self.names), np.asarray(columns, np.int64)).ravel()
        if not self.present.all():
            cells = np.cumsum(self.present.ravel())[cells] - 1
        return take(self.values, cells)


def undecoded_names(names: tuple[str, ...], undecoded: Mask | None, rows: int) -> pa.ListArray:
    """Return for each row the names of its undecoded columns, in column order; null where there are none."""
    if undecoded is None or not undecoded.any():
        return pa.nulls(rows, pa.list_(pa.string()))
    counts = undecoded.sum(axis=1)
    return pa.ListArray.from_arrays(
        pa.array(np.append(0, np.cumsum(counts)).astype(np.int32)),
        take(pa.array(names, pa.string()), np.nonzero(undecoded)[1]),
        mask=pa.array(counts == 0),
    )


def with_nulls(raw: pa.BinaryArray, null: Mask) -> pa.BinaryArray:
    """Return the same values, null where marked."""
    if not null.any():
        return raw
    valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.BinaryArray.from_buffers(pa.binary(), len(raw), [valid, *raw.buffers()[1:]])


def _map(ends: Index, keys: pa.StringArray, items: pa.StringArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), keys, items)


def _tile(names: Sequence[str], times: int) -> pa.StringArray:
    """Return the names repeated, built from their bytes as a whole."""
    encoded = [n.encode() for n in names]
    width = sum(map(len, encoded))
    if width * times > MAX_ARRAY_BYTES or len(names) * times > MAX_ARRAY_BYTES:
        raise batch_too_large(f"the images of {times} rows of {len(names)} columns")
    starts = np.cumsum([0, *map(len, encoded)])[:-1]
    offsets = np.append(np.add.outer(np.arange(times) * width, starts).ravel(), width * times).astype(np.int32)
    data = b"".join(encoded) * times
    return pa.StringArray.from_buffers(len(names) * times, pa.py_buffer(offsets), pa.py_buffer(data))


def batch_too_large(content: str) -> ReconcileError:
    """Return the error for content that exceeds Arrow's offsets of 32 bits."""
    return ReconcileError(
        f"{content} exceed 2 GiB, the size of one Arrow array",
        next_step="decode fewer rows at a time (spark.sql.execution.arrow.maxRecordsPerBatch)",
    )


def text_or_hex(raw: pa.BinaryArray) -> tuple[pa.StringArray, Mask]:
    """Return text, with hex for values that are not UTF-8, and which those are; tests single values in few blocks."""
    wrong = np.zeros(len(raw), np.bool_)
    for start in range(0, len(raw), _BLOCK_VALUES):
        block = raw.slice(start, _BLOCK_VALUES)
        try:
            block.cast(pa.string())
        except pa.ArrowInvalid:
            wrong[start : start + len(block)] = [not _is_text(value) for value in block.to_pylist()]
    as_hex = [b"\\x" + value.hex().encode() for value in raw.filter(pa.array(wrong)).to_pylist()]
    return pc.replace_with_mask(raw, pa.array(wrong), pa.array(as_hex, pa.binary())).cast(pa.string()), wrong


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
