"""One column of many MySQL rows as bytes: the offsets of its values.

Between the two formats, which find the values (``binlog_rows``, ``mysql_rows``), and the modules that read them by type
(``mysql_numbers``, ``mysql_times``, ``mysql_text``, ``mysql_json``). Whole columns are read at a time. NULLs are
marked here: a reader returns any text for a null cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.payloads.decode.grid import spans, take
from dblake.payloads.decode.payloads import Bytes, Index, Mask

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
        for offset in range(0, width, 8):
            size = min(width - offset, 8)
            same &= (self.big(offset, size) == other.big(offset, size)) | self.null
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

    def big(self, offset: int, width: int) -> Index:
        """Return the big-endian number in ``width`` bytes (up to 8) from ``offset`` of every cell; of 8, its bits."""
        words = np.ndarray((len(self.data) - 7,), ">u8", self.data, 0, (1,))
        offsets = np.minimum(self.start + offset, len(words) - 1) if offset else self.start
        bits = words[offsets].astype(np.uint64) >> np.uint64(64 - 8 * width)
        return bits.view(np.int64)
