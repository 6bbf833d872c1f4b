"""MySQL's numbers, bits, years, enums and sets as the binlog stores them, to text.

Called by ``binlog_columns``; ``mysql_rows`` shares ``real_text`` and ``bits``. Promises the canonical text that
``mysql_rows`` makes of the same values: no leading zeros, every digit of a decimal's scale, no minus zero. Layout:
MySQL's source, ``decimal2bin`` and ``Field::pack``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dblake.decode.grid import take
from dblake.decode.mysql_cells import Cells, Text, digits, fixed, trimmed

_DIGITS = 9
# Bytes that so many digits of an incomplete word take.
_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_MINUS, _POINT, _ZERO = b"-.0"


def integer(cells: Cells, width: int, unsigned: bool) -> Text:
    """Little-endian integers of ``width`` bytes."""
    bits = cells.little(width)
    if unsigned:
        return Text(pa.array(bits).cast(pa.string()))
    up = np.int64(64 - 8 * width)
    return Text(pa.array(bits.view(np.int64) << up >> up).cast(pa.string()))


def real(cells: Cells, width: int) -> Text:
    """Floats of 4 or 8 bytes: the shortest text that reads back as the same number."""
    bits = cells.little(width)
    numbers = bits.view(np.float64) if width == 8 else bits.astype(np.uint32).view(np.float32)
    return Text(real_text(np.where(cells.null, numbers.dtype.type(0), numbers)))


def real_text(numbers: np.ndarray[tuple[int], np.dtype[np.floating]]) -> pa.StringArray:
    """How floats are spelled, whichever way they came. Minus zero equals zero to the database, so it is spelled so."""
    with np.errstate(invalid="ignore"):
        return pa.array(numbers + numbers.dtype.type(0)).cast(pa.string())


def decimal_bytes(precision: int, scale: int) -> int:
    """How long a decimal is."""
    return sum(part // _DIGITS * 4 + _BYTES[part % _DIGITS] for part in (precision - scale, scale))


def decimal(cells: Cells, precision: int, scale: int) -> Text:
    """Packed decimals: words of nine digits, the incomplete ones outermost; negative ones with all bits turned."""
    whole = max(precision - scale, 1)
    negative = cells.big(0, 1) < 0x80
    out = np.full((len(cells), 1 + whole + (1 + scale if scale else 0)), _ZERO, np.uint8)
    if scale:
        out[:, 1 + whole] = _POINT
    column, at = 1 + whole - (precision - scale), 0
    for width in _words(precision - scale, scale):
        if column == 1 + whole:
            column += 1
        length = _BYTES[width]
        word = cells.big(at, length)
        if at == 0:
            word = word ^ (0x80 << 8 * (length - 1))
        word = np.where(negative, word ^ ((1 << 8 * length) - 1), word)
        out[:, column : column + width] = digits(word, width)
        column, at = column + width, at + length
    # The last digit before the point stays, whatever it is.
    out_of_zeros = out[:, 1 : 1 + whole] != _ZERO
    out_of_zeros[:, -1] = True
    lead = 1 + np.argmax(out_of_zeros, axis=1)
    signed = np.flatnonzero(negative)
    if len(signed):
        signed = signed[((out[signed, 1:] != _ZERO) & (out[signed, 1:] != _POINT)).any(axis=1)]
        lead[signed] -= 1
        out[signed, lead[signed]] = _MINUS
    return Text(trimmed(out, lead))


def _words(whole: int, scale: int) -> list[int]:
    """How many digits each word has."""
    before = [whole % _DIGITS] if whole % _DIGITS else []
    behind = [scale % _DIGITS] if scale % _DIGITS else []
    return before + [_DIGITS] * (whole // _DIGITS) + [_DIGITS] * (scale // _DIGITS) + behind


def bits(cells: Cells, width: int) -> Text:
    """``bit(n)``: as many characters 0 and 1."""
    number = cells.big(0, (width + 7) // 8).astype(">i8")
    every = np.unpackbits(number.view(np.uint8).reshape(-1, 8), axis=1)
    return Text(fixed(every[:, 64 - width :] + np.uint8(_ZERO)))


def year(cells: Cells) -> Text:
    """One byte, years since 1900; 0 is the year 0000."""
    number = cells.little(1).view(np.int64)
    return Text(fixed(digits(np.where(number == 0, 0, 1900 + number), 4)))


def enum(cells: Cells, labels: Sequence[str]) -> Text:
    """The label's number from 1; 0 is the empty value that stands for a wrong one."""
    number = cells.little(1 if len(labels) < 256 else 2).view(np.int64)
    wrong = (number > len(labels)) & ~cells.null
    known = np.where(number > len(labels), 0, number)
    return Text(take(pa.array(["", *labels], pa.string()), known), wrong=wrong if wrong.any() else None)


def members(cells: Cells, labels: Sequence[str], width: int) -> Text:
    """A set: one bit for each label, the first one lowest; labels joined with commas."""
    number = cells.little(width)
    number[cells.null] = 0
    seen, which = np.unique(number, return_inverse=True)
    texts = [",".join(label for bit, label in enumerate(labels) if value >> bit & 1) for value in seen.tolist()]
    wrong = np.array([value >> len(labels) > 0 for value in seen.tolist()], np.bool_)[which]
    return Text(take(pa.array(texts, pa.string()), which), wrong=wrong if wrong.any() else None)
