"""Columns of characters in numpy's arrays → columns of text.

Place: between the readers of types (``mysql_numbers``, ``mysql_times``, ``mysql_text``), which compute the characters
of all cells at once, and ``mysql_columns``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.payloads.decode.grid import MAX_ARRAY_BYTES, batch_too_large, spans, take
from dblake.payloads.decode.payloads import Bytes, Index


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
