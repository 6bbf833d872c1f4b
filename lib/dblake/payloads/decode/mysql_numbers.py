"""Read MySQL's numbers, bits, years, enums and sets from the binlog as text.

Called by ``binlog_columns``; ``mysql_rows`` shares ``real_text`` and ``bits``. Guarantee: the text is the canonical one
that ``mysql_rows`` returns for the same values: no leading zeros, every digit of a decimal's scale, no minus zero.
Layout: MySQL's source, ``decimal2bin`` and ``Field::pack``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dblake.payloads.decode.grid import take
from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_characters import digits, fixed, trimmed
from dblake.payloads.decode.mysql_columns import Text

_WORD_DIGITS = 9
_WORD_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of a word by the number of its digits."""
_MINUS, _POINT, _ZERO = b"-.0"


def integer(cells: Cells, width: int, unsigned: bool) -> Text:
    """Read little-endian integers of ``width`` bytes."""
    bits = cells.little(width)
    if unsigned:
        return Text(pa.array(bits).cast(pa.string()))
    shift = np.int64(64 - 8 * width)
    return Text(pa.array(bits.view(np.int64) << shift >> shift).cast(pa.string()))


def real(cells: Cells, width: int) -> Text:
    """Read floats of 4 or 8 bytes as the shortest text that parses to the same number."""
    bits = cells.little(width)
    numbers = bits.view(np.float64) if width == 8 else bits.astype(np.uint32).view(np.float32)
    return Text(real_text(np.where(cells.null, numbers.dtype.type(0), numbers)))


def real_text(numbers: np.ndarray[tuple[int], np.dtype[np.floating]]) -> pa.StringArray:
    """Return the canonical text of floats. Minus zero becomes zero, as the two are equal to the database."""
    with np.errstate(invalid="ignore"):
        return pa.array(numbers + numbers.dtype.type(0)).cast(pa.string())


def decimal_bytes(precision: int, scale: int) -> int:
    """Return the bytes of a packed decimal."""
    return sum(
        part // _WORD_DIGITS * 4 + _WORD_BYTES[part % _WORD_DIGITS] for part in (precision - scale, scale)
    )


def decimal(cells: Cells, precision: int, scale: int) -> Text:
    """Read packed decimals: words of nine digits, incomplete ones outermost; negative ones with all bits inverted."""
    whole = max(precision - scale, 1)
    negative = cells.big(0, 1) < 0x80
    out = np.full((len(cells), 1 + whole + (1 + scale if scale else 0)), _ZERO, np.uint8)
    if scale:
        out[:, 1 + whole] = _POINT
    column, offset = 1 + whole - (precision - scale), 0
    for width in _word_widths(precision - scale, scale):
        if column == 1 + whole:
            column += 1
        length = _WORD_BYTES[width]
        word = cells.big(offset, length)
        if offset == 0:
            word = word ^ (0x80 << 8 * (length - 1))
        word = np.where(negative, word ^ ((1 << 8 * length) - 1), word)
        out[:, column : column + width] = digits(word, width)
        column, offset = column + width, offset + length
    # The last digit before the point is kept, even a zero.
    is_kept = out[:, 1 : 1 + whole] != _ZERO
    is_kept[:, -1] = True
    lead = 1 + np.argmax(is_kept, axis=1)
    signed = np.flatnonzero(negative)
    if len(signed):
        signed = signed[((out[signed, 1:] != _ZERO) & (out[signed, 1:] != _POINT)).any(axis=1)]
        lead[signed] -= 1
        out[signed, lead[signed]] = _MINUS
    return Text(trimmed(out, lead))


def _word_widths(whole: int, scale: int) -> list[int]:
    """Return the number of digits of each word."""
    first = [whole % _WORD_DIGITS] if whole % _WORD_DIGITS else []
    last = [scale % _WORD_DIGITS] if scale % _WORD_DIGITS else []
    return first + [_WORD_DIGITS] * (whole // _WORD_DIGITS + scale // _WORD_DIGITS) + last


def bits(cells: Cells, width: int) -> Text:
    """Read ``bit(n)`` as n characters 0 and 1."""
    number = cells.big(0, (width + 7) // 8).astype(">i8")
    every = np.unpackbits(number.view(np.uint8).reshape(-1, 8), axis=1)
    return Text(fixed(every[:, 64 - width :] + np.uint8(_ZERO)))


def year(cells: Cells) -> Text:
    """Read years: one byte, years since 1900; 0 is the year 0000."""
    number = cells.little(1).view(np.int64)
    return Text(fixed(digits(np.where(number == 0, 0, 1900 + number), 4)))


def enum(cells: Cells, labels: Sequence[str]) -> Text:
    """Read enums: the label's number from 1; 0 is the empty value that the server stores for an invalid one."""
    number = cells.little(1 if len(labels) < 256 else 2).view(np.int64)
    wrong = (number > len(labels)) & ~cells.null
    label = np.where(number > len(labels), 0, number)
    return Text(take(pa.array(["", *labels], pa.string()), label), wrong=wrong if wrong.any() else None)


def members(cells: Cells, labels: Sequence[str], width: int) -> Text:
    """Read sets: one bit for each label, the first one lowest; the text joins labels with commas."""
    number = cells.little(width)
    number[cells.null] = 0
    distinct, which = np.unique(number, return_inverse=True)
    texts = [",".join(label for bit, label in enumerate(labels) if value >> bit & 1) for value in distinct.tolist()]
    wrong = np.array([value >> len(labels) > 0 for value in distinct.tolist()], np.bool_)[which]
    return Text(take(pa.array(texts, pa.string()), which), wrong=wrong if wrong.any() else None)
