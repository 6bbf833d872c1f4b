"""CRC-32 of many texts, as zlib computes it for one.

Place: below ``partition``. Guarantee: equal to ``zlib.crc32`` of each text's UTF-8, so that any program can compute a
row's partition. The loop is over the bytes of the longest text, not over texts.
"""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MIN_BYTES_LEFT = 64
"""Below so many texts of one length left, one call of zlib for each is faster than numpy."""


def crc32_of(texts: pa.Array) -> np.ndarray:
    """Return zlib's CRC-32 of texts, column by column of bytes; 0 for NULL."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = pc.fill_null(texts, "")
    if len(texts) < _MIN_BYTES_LEFT:
        return np.array([zlib.crc32(text.encode()) for text in texts.to_pylist()], np.int64)
    texts = texts.cast(pa.large_binary())
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    data = np.frombuffer(texts.buffers()[2] or b"\0", np.uint8)
    lengths = np.diff(offsets)
    crc = np.full(len(texts), 0xFFFFFFFF, np.uint32)
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > place)
        if len(rows) < _MIN_BYTES_LEFT:
            for row in rows:
                rest = data[offsets[row] + place : offsets[row + 1]].tobytes()
                crc[row] = zlib.crc32(rest, int(crc[row]) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
            break
        one = crc[rows]
        crc[rows] = _TABLE[(one ^ data[offsets[rows] + place]) & 0xFF] ^ (one >> 8)
    return (crc ^ 0xFFFFFFFF).astype(np.int64)


def _make_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()
