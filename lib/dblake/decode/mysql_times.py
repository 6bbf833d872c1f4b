"""MySQL's dates and times as the binlog stores them, to text.

Called by ``binlog_columns``, beside ``mysql_numbers``. Promises the text the server prints in the time zone +00:00,
zero parts and zero dates kept: whether a date exists is left to the types of state. Layout: MySQL's source,
``my_datetime_packed_to_binary`` and its neighbours; the old formats are numbers that read like the date.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblake.decode.mysql_cells import Cells, Text, digits, fixed, trimmed
from dblake.decode.payloads import Bytes, Index, Mask

_DAY = 86_400
# Every day that 32 bits of seconds since 1970 reach.
_DAYS = pa.array(np.datetime_as_string(np.arange(2**32 // _DAY + 1).astype("datetime64[D]")), pa.string())
_DAY_TEXT = np.frombuffer(_DAYS.buffers()[2], np.uint8).reshape(-1, 10)
_DATE, _CLOCK = len("YYYY-MM-DD"), len("HH:MM:SS")


def fraction_bytes(fraction: int) -> int:
    """Bytes behind the whole seconds."""
    return (fraction + 1) // 2


def date(cells: Cells) -> Text:
    """Three bytes: a day, a month and a year of 5, 4 and 15 bits."""
    number = cells.little(3).view(np.int64)
    return Text(fixed(_dates(number >> 9, number >> 5 & 15, number & 31)))


def datetime(cells: Cells, fraction: int) -> Text:
    """Five bytes big-endian, the months of all years counted by 13, and the fraction."""
    number = cells.big(0, 5)
    days, clock = (number >> 17) & 0x3FFFFF, number & 0x1FFFF
    months = days >> 5
    day = _dates(months // 13, months % 13, days & 31)
    return Text(fixed(np.hstack([day, _after_date(clock), *_fractions(cells, 5, fraction)])))


def timestamp(cells: Cells, fraction: int) -> Text:
    """Four bytes of seconds since 1970, big-endian, and the fraction; all zero is the zero date."""
    seconds = cells.big(0, 4)
    return Text(fixed(np.hstack([*_moment(seconds), *_fractions(cells, 4, fraction)])))


def time(cells: Cells, fraction: int) -> Text:
    """Three bytes and the fraction as one big-endian number, half its range below zero."""
    tail = fraction_bytes(fraction)
    number = cells.big(0, 3 + tail) - (0x800000 << 8 * tail)
    size = np.abs(number)
    whole = size >> 8 * tail
    return _times(number < 0, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, _decimals(size, fraction))


def old_datetime(cells: Cells) -> Text:
    """Eight bytes: the number that reads YYYYMMDDHHMMSS."""
    number = cells.little(8).view(np.int64)
    number[cells.null] = 0
    day, clock = number // 1_000_000, number % 1_000_000
    dates = _dates(day // 10_000, day // 100 % 100, day % 100)
    clocks = clock // 10_000 << 12 | clock // 100 % 100 << 6 | clock % 100
    return Text(fixed(np.hstack([dates, _after_date(clocks)])))


def old_timestamp(cells: Cells) -> Text:
    """Four bytes of seconds since 1970, little-endian."""
    return Text(fixed(np.hstack(_moment(cells.little(4).view(np.int64)))))


def old_time(cells: Cells) -> Text:
    """Three bytes, signed: the number that reads HHMMSS."""
    number = cells.little(3).view(np.int64) << 40 >> 40
    size = np.abs(number)
    return _times(number < 0, size // 10_000, size // 100 % 100, size % 100, [])


def _moment(seconds: Index) -> list[Bytes]:
    day, second = seconds // _DAY, seconds % _DAY
    dates = _DAY_TEXT[day]
    dates[seconds == 0] = np.frombuffer(b"0000-00-00", np.uint8)
    return [dates, _after_date(second // 3600 << 12 | second // 60 % 60 << 6 | second % 60)]


def _dates(year: Index, month: Index, day: Index) -> Bytes:
    out = np.full((len(year), _DATE), ord("-"), np.uint8)
    out[:, 0:4], out[:, 5:7], out[:, 8:10] = digits(year, 4), digits(month, 2), digits(day, 2)
    return out


def _after_date(clock: Index) -> Bytes:
    """A blank and the time of day, whose parts have 5, 6 and 6 bits."""
    out = np.full((len(clock), 1 + _CLOCK), ord(":"), np.uint8)
    out[:, 0] = ord(" ")
    out[:, 1:3], out[:, 4:6], out[:, 7:9] = digits(clock >> 12, 2), digits(clock >> 6 & 63, 2), digits(clock & 63, 2)
    return out


def _fractions(cells: Cells, at: int, fraction: int) -> list[Bytes]:
    return _decimals(cells.big(at, fraction_bytes(fraction)), fraction) if fraction else []


def _decimals(number: Index, fraction: int) -> list[Bytes]:
    """The point and the digits; they are stored in pairs, so that an odd count has a zero behind it."""
    if not fraction:
        return []
    tail = fraction_bytes(fraction)
    decimals = digits(number & ((1 << 8 * tail) - 1), 2 * tail)[:, :fraction]
    return [np.full((len(number), 1), ord("."), np.uint8), decimals]


def _times(negative: Mask, hours: Index, minutes: Index, seconds: Index,
           decimals: list[Bytes]) -> Text:
    out = np.full((len(hours), 2 + _CLOCK), ord(":"), np.uint8)
    out[:, 1:4], out[:, 5:7], out[:, 8:10] = digits(hours, 3), digits(minutes, 2), digits(seconds, 2)
    out = np.hstack([out, *decimals])
    lead = np.where(hours >= 100, 1, 2)
    signed = np.flatnonzero(negative)
    lead[signed] -= 1
    out[signed, lead[signed]] = ord("-")
    return Text(trimmed(out, lead))


