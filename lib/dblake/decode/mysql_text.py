"""MySQL's character sets to UTF-8, and its bytes to hex.

Called for ``binlog_rows`` and ``mysql_rows`` alike, which both get a column's raw bytes: so one value is one text,
whichever way it came. Promises that bytes which are no text in the column's character set stand as ``\\x`` and hex
and are marked. Which character sets there are is ``formats.mysql_charsets``'.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.decode.grid import text_or_hex
from dblake.decode.mysql_cells import Cells, Text, of_lengths
from dblake.decode.payloads import Bytes, Index, Mask
from dblake.formats.mysql_charsets import CHARSETS, Charset

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_WITHOUT_ASCII = ("utf-16-be", "utf-16-le", "utf-32-be")


def transcoded(raw: pa.BinaryArray, charset: str) -> Text:
    """Values of a character set as UTF-8."""
    known = CHARSETS[charset]
    data, offsets = content(raw)
    if known.codec not in _WITHOUT_ASCII and (known.codec != "utf-8" and (len(data) == 0 or data.max() < 0x80)):
        return Text(raw.cast(pa.string()))
    if known.codec == "utf-8":
        return _utf8(raw)
    return _by_byte(raw, data, offsets, charset) if known.max_bytes == 1 else _by_value(raw, known)


def hexed(raw: pa.BinaryArray) -> pa.StringArray:
    """``\\x`` and two digits for every byte."""
    data, offsets = content(raw)
    digits = _HEX[data].view(np.uint8)
    return pc.binary_join_element_wise("\\x", of_lengths(digits, 2 * np.diff(offsets)), "")


def padded(cells: Cells, width: int) -> tuple[pa.BinaryArray, Mask | None]:
    """Bytes with zeros behind them up to a width, since the binlog leaves them out; and which were longer than that."""
    lengths = np.minimum(cells.length, width)
    raw = replace(cells, length=lengths).raw()
    wrong = cells.length > width
    out = np.zeros((len(raw), width), np.uint8)
    out[np.arange(width) < lengths[:, None]] = content(raw)[0]
    ends = np.arange(len(raw) + 1, dtype=np.int32) * np.int32(width)
    full = pa.BinaryArray.from_buffers(pa.binary(), len(raw), [None, pa.py_buffer(ends), pa.py_buffer(out)])
    return full, wrong if wrong.any() else None


def content(raw: pa.BinaryArray) -> tuple[Bytes, Index]:
    """The bytes of all values and where each begins in them."""
    _, offsets, data = raw.buffers()
    ends = np.frombuffer(offsets, np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    every = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return every[ends[0] : ends[-1]], ends - ends[0]


def _utf8(raw: pa.BinaryArray) -> Text:
    try:
        return Text(raw.cast(pa.string()))
    except pa.ArrowInvalid:
        return Text(*text_or_hex(raw))


@lru_cache(maxsize=64)
def _table(charset: str) -> tuple[Bytes, Index, Mask]:
    """For each byte its UTF-8, how long that is, and whether it is none."""
    known = CHARSETS[charset]
    text, length, gap = np.zeros((256, 3), np.uint8), np.zeros(256, np.int64), np.zeros(256, np.bool_)
    for byte in range(256):
        try:
            character = bytes([byte]).decode(known.codec)
        except UnicodeDecodeError:
            character, gap[byte] = chr(byte), not known.controls
        encoded = known.differs.get(character, character).encode()
        text[byte, : len(encoded)], length[byte] = list(encoded), len(encoded)
    return text, length, gap


def _by_byte(raw: pa.BinaryArray, data: Bytes, offsets: Index, charset: str) -> Text:
    text, length, gap = _table(charset)
    lengths = length[data]
    before = np.append(0, np.cumsum(lengths))
    characters = text[data][np.arange(3) < lengths[:, None]]
    values = of_lengths(characters, np.diff(before[offsets]))
    gaps = np.append(0, np.cumsum(gap[data]))
    wrong = np.diff(gaps[offsets]) > 0
    if not wrong.any():
        return Text(values)
    marked = pa.array(wrong)
    return Text(pc.replace_with_mask(values, marked, hexed(raw.filter(marked))), wrong)


def _by_value(raw: pa.BinaryArray, charset: Charset) -> Text:
    """Each distinct value on its own: characters of several bytes cannot be told without reading from the front."""
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
