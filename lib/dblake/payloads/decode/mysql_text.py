r"""Convert MySQL's character sets to UTF-8, and its bytes to hex.

Called for ``binlog_rows`` and ``mysql_rows`` alike, which both have a column's raw bytes, so that a value has one text,
from the log or from a chunk. Guarantee: bytes that are not valid text of the column's character set become ``\x`` and
hex digits, and are marked. ``formats.mysql_charsets`` lists the character sets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.payloads.decode.grid import text_or_hex
from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_characters import of_lengths
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.payloads import Bytes, Index, Mask
from dblake.payloads.formats.mysql_charsets import CHARSETS, Charset

HEX_PAIRS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""Two digits for each byte."""
_WITHOUT_ASCII = ("utf-16-be", "utf-16-le", "utf-32-be")
"""Codecs in which ASCII characters are not ASCII bytes."""


def to_utf8(raw: pa.BinaryArray, charset: str) -> Text:
    """Return values of a character set as UTF-8."""
    source = CHARSETS[charset]
    data, offsets = content(raw)
    if source.codec not in _WITHOUT_ASCII and (source.codec != "utf-8" and (len(data) == 0 or data.max() < 0x80)):
        return Text(raw.cast(pa.string()))
    if source.codec == "utf-8":
        return _validate_utf8(raw)
    return _convert_bytes(raw, data, offsets, charset) if source.max_bytes == 1 else _convert_values(raw, source)


def to_hex(raw: pa.BinaryArray) -> pa.StringArray:
    r"""Return ``\x`` and two digits for every byte."""
    data, offsets = content(raw)
    digits = HEX_PAIRS[data].view(np.uint8)
    return pc.binary_join_element_wise("\\x", of_lengths(digits, 2 * np.diff(offsets)), "")


def padded(cells: Cells, width: int) -> tuple[pa.BinaryArray, Mask | None]:
    """Return bytes padded with zeros, which the binlog leaves out, to ``width``; and which were longer than that."""
    lengths = np.minimum(cells.length, width)
    raw = replace(cells, length=lengths).raw()
    wrong = cells.length > width
    out = np.zeros((len(raw), width), np.uint8)
    out[np.arange(width) < lengths[:, None]] = content(raw)[0]
    ends = np.arange(len(raw) + 1, dtype=np.int32) * np.int32(width)
    full = pa.BinaryArray.from_buffers(pa.binary(), len(raw), [None, pa.py_buffer(ends), pa.py_buffer(out)])
    return full, wrong if wrong.any() else None


def content(raw: pa.BinaryArray) -> tuple[Bytes, Index]:
    """Return the bytes of all values, and the offset of each in them."""
    _, offsets, data = raw.buffers()
    ends = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    every = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return every[ends[0] : ends[-1]], ends - ends[0]


def _validate_utf8(raw: pa.BinaryArray) -> Text:
    try:
        return Text(raw.cast(pa.string()))
    except pa.ArrowInvalid:
        return Text(*text_or_hex(raw))


@lru_cache(maxsize=64)
def _conversion_table(charset: str) -> tuple[Bytes, Index, Mask]:
    """Return for each byte its UTF-8, the length of that, and whether it is no character."""
    source = CHARSETS[charset]
    text, length, is_gap = np.zeros((256, 3), np.uint8), np.zeros(256, np.int64), np.zeros(256, np.bool_)
    for byte in range(256):
        try:
            character = bytes([byte]).decode(source.codec)
        except UnicodeDecodeError:
            character, is_gap[byte] = chr(byte), not source.controls
        encoded = source.differs.get(character, character).encode()
        text[byte, : len(encoded)], length[byte] = list(encoded), len(encoded)
    return text, length, is_gap


def _convert_bytes(raw: pa.BinaryArray, data: Bytes, offsets: Index, charset: str) -> Text:
    text, length, is_gap = _conversion_table(charset)
    lengths = length[data]
    ends = np.append(0, np.cumsum(lengths))
    characters = text[data][np.arange(3) < lengths[:, None]]
    values = of_lengths(characters, np.diff(ends[offsets]))
    gaps = np.append(0, np.cumsum(is_gap[data]))
    undecoded = np.diff(gaps[offsets]) > 0
    if not undecoded.any():
        return Text(values)
    marked = pa.array(undecoded)
    return Text(pc.replace_with_mask(values, marked, to_hex(raw.filter(marked))), undecoded)


def _convert_values(raw: pa.BinaryArray, charset: Charset) -> Text:
    """Convert each distinct value alone: characters of several bytes can only be read from the front."""
    distinct = raw.dictionary_encode()
    texts, wrong = [], np.zeros(len(distinct.dictionary), np.bool_)
    differs = str.maketrans(dict(charset.differs))
    for number, value in enumerate(distinct.dictionary.to_pylist()):
        try:
            texts.append(value.decode(charset.codec).translate(differs))
        except UnicodeDecodeError:
            texts.append("\\x" + value.hex())
            wrong[number] = True
    which = distinct.indices.to_numpy()
    return Text(pa.array(texts, pa.string()).take(distinct.indices), wrong[which] if wrong.any() else None)
