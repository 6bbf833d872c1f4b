"""Reads MySQL's dates and times from the binlog as text.

Called by ``binlog_columns``, beside ``mysql_numbers``. Promises the text that the server prints in time zone +00:00,
zero parts and zero dates included: validating dates is left to the types of state. Layout: MySQL's source,
``my_datetime_packed_to_binary`` and its neighbours; the old formats are decimal numbers with the digits of the date.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblake.decode.mysql_cells import Cells, Text, digits, fixed, trimmed
from dblake.decode.payloads import Bytes, Index, Mask

_DAY_SECONDS = 86_400
_DAYS = pa.array(np.datetime_as_string(np.arange(2**32 // _DAY_SECONDS + 1).astype("datetime64[D]")), pa.string())
"""Every day that 32 bits of seconds since 1970 can express."""
_DAY_TEXT = np.frombuffer(_DAYS.buffers()[2], np.uint8).reshape(-1, 10)
_DATE_WIDTH, _CLOCK_WIDTH = len("YYYY-MM-DD"), len("HH:MM:SS")


def fraction_bytes(fraction: int) -> int:
    """Return the bytes of a fraction of seconds with this number of digits."""
    return (fraction + 1) // 2


def date(cells: Cells) -> Text:
    """Read dates: three bytes with a day, a month and a year of 5, 4 and 15 bits."""
    number = cells.little(3).view(np.int64)
    return Text(fixed(_format_dates(number >> 9, number >> 5 & 15, number & 31)))


def datetime(cells: Cells, fraction: int) -> Text:
    """Read datetimes: five bytes big-endian, with 13 months a year, and the fraction."""
    number = cells.big(0, 5)
    days, clock = (number >> 17) & 0x3FFFFF, number & 0x1FFFF
    months = days >> 5
    day = _format_dates(months // 13, months % 13, days & 31)
    return Text(fixed(np.hstack([day, _format_clocks(clock), *_read_fractions(cells, 5, fraction)])))


def timestamp(cells: Cells, fraction: int) -> Text:
    """Read timestamps: four bytes of seconds since 1970, big-endian, and the fraction; 0 is the zero date."""
    seconds = cells.big(0, 4)
    return Text(fixed(np.hstack([*_format_seconds(seconds), *_read_fractions(cells, 4, fraction)])))


def time(cells: Cells, fraction: int) -> Text:
    """Read times: three bytes and the fraction as one big-endian number, half its range below zero."""
    tail = fraction_bytes(fraction)
    number = cells.big(0, 3 + tail) - (0x800000 << 8 * tail)
    size = np.abs(number)
    whole = size >> 8 * tail
    return _format_times(
        number < 0, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, _format_fractions(size, fraction)
    )


def old_datetime(cells: Cells) -> Text:
    """Read datetimes of the old format: eight bytes, the number with the digits YYYYMMDDHHMMSS."""
    number = cells.little(8).view(np.int64)
    number[cells.null] = 0
    day, clock = number // 1_000_000, number % 1_000_000
    dates = _format_dates(day // 10_000, day // 100 % 100, day % 100)
    clocks = clock // 10_000 << 12 | clock // 100 % 100 << 6 | clock % 100
    return Text(fixed(np.hstack([dates, _format_clocks(clocks)])))


def old_timestamp(cells: Cells) -> Text:
    """Read timestamps of the old format: four bytes of seconds since 1970, little-endian."""
    return Text(fixed(np.hstack(_format_seconds(cells.little(4).view(np.int64)))))


def old_time(cells: Cells) -> Text:
    """Read times of the old format: three bytes, the signed number with the digits HHMMSS."""
    number = cells.little(3).view(np.int64) << 40 >> 40
    size = np.abs(number)
    return _format_times(number < 0, size // 10_000, size // 100 % 100, size % 100, [])


def _format_seconds(seconds: Index) -> list[Bytes]:
    day, second = seconds // _DAY_SECONDS, seconds % _DAY_SECONDS
    dates = _DAY_TEXT[day]
    dates[seconds == 0] = np.frombuffer(b"0000-00-00", np.uint8)
    return [dates, _format_clocks(second // 3600 << 12 | second // 60 % 60 << 6 | second % 60)]


def _format_dates(year: Index, month: Index, day: Index) -> Bytes:
    out = np.full((len(year), _DATE_WIDTH), ord("-"), np.uint8)
    out[:, 0:4], out[:, 5:7], out[:, 8:10] = digits(year, 4), digits(month, 2), digits(day, 2)
    return out


def _format_clocks(clock: Index) -> Bytes:
    """Format a blank and the time of day, whose parts have 5, 6 and 6 bits."""
    out = np.full((len(clock), 1 + _CLOCK_WIDTH), ord(":"), np.uint8)
    out[:, 0] = ord(" ")
    out[:, 1:3], out[:, 4:6], out[:, 7:9] = digits(clock >> 12, 2), digits(clock >> 6 & 63, 2), digits(clock & 63, 2)
    return out


def _read_fractions(cells: Cells, at: int, fraction: int) -> list[Bytes]:
    return _format_fractions(cells.big(at, fraction_bytes(fraction)), fraction) if fraction else []


def _format_fractions(number: Index, fraction: int) -> list[Bytes]:
    """Format the point and the digits; they are stored in pairs, so an odd number of them has a zero behind it."""
    if not fraction:
        return []
    tail = fraction_bytes(fraction)
    decimals = digits(number & ((1 << 8 * tail) - 1), 2 * tail)[:, :fraction]
    return [np.full((len(number), 1), ord("."), np.uint8), decimals]


def _format_times(negative: Mask, hours: Index, minutes: Index, seconds: Index, decimals: list[Bytes]) -> Text:
    out = np.full((len(hours), 2 + _CLOCK_WIDTH), ord(":"), np.uint8)
    out[:, 1:4], out[:, 5:7], out[:, 8:10] = digits(hours, 3), digits(minutes, 2), digits(seconds, 2)
    out = np.hstack([out, *decimals])
    lead = np.where(hours >= 100, 1, 2)
    signed = np.flatnonzero(negative)
    lead[signed] -= 1
    out[signed, lead[signed]] = ord("-")
    return Text(trimmed(out, lead))


