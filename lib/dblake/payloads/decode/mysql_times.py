"""Read MySQL's dates and times from the binlog: the numbers that each type's bytes hold.

Called by ``binlog_columns``, beside ``mysql_numbers``; ``mysql_time_text`` formats the numbers. Zero parts and zero
dates are read as they are: validating dates is left to the types of state. Layout: MySQL's source,
``my_datetime_packed_to_binary`` and its neighbours; the old formats are decimal numbers with the digits of the date.
"""

from __future__ import annotations

import numpy as np

from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_characters import fixed
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.mysql_time_text import (
    format_clocks,
    format_dates,
    format_fractions,
    format_seconds,
    format_times,
    fraction_bytes,
)
from dblake.payloads.decode.payloads import Bytes


def date(cells: Cells) -> Text:
    """Read dates: three bytes with a day, a month and a year of 5, 4 and 15 bits."""
    number = cells.little(3).view(np.int64)
    return Text(fixed(format_dates(number >> 9, number >> 5 & 15, number & 31)))


def datetime(cells: Cells, fraction: int) -> Text:
    """Read datetimes: five bytes big-endian, with 13 months a year, and the fraction."""
    number = cells.big(0, 5)
    days, clock = (number >> 17) & 0x3FFFFF, number & 0x1FFFF
    months = days >> 5
    day = format_dates(months // 13, months % 13, days & 31)
    return Text(fixed(np.hstack([day, format_clocks(clock), *_read_fractions(cells, 5, fraction)])))


def timestamp(cells: Cells, fraction: int) -> Text:
    """Read timestamps: four bytes of seconds since 1970, big-endian, and the fraction; 0 is the zero date."""
    seconds = cells.big(0, 4)
    return Text(fixed(np.hstack([*format_seconds(seconds), *_read_fractions(cells, 4, fraction)])))


def time(cells: Cells, fraction: int) -> Text:
    """Read times: three bytes and the fraction as one big-endian number, half its range below zero."""
    tail = fraction_bytes(fraction)
    number = cells.big(0, 3 + tail) - (0x800000 << 8 * tail)
    size = np.abs(number)
    whole = size >> 8 * tail
    return format_times(
        number < 0, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, format_fractions(size, fraction)
    )


def old_datetime(cells: Cells) -> Text:
    """Read datetimes of the old format: eight bytes, the number with the digits YYYYMMDDHHMMSS."""
    number = cells.little(8).view(np.int64)
    number[cells.null] = 0
    day, clock = number // 1_000_000, number % 1_000_000
    dates = format_dates(day // 10_000, day // 100 % 100, day % 100)
    clocks = clock // 10_000 << 12 | clock // 100 % 100 << 6 | clock % 100
    return Text(fixed(np.hstack([dates, format_clocks(clocks)])))


def old_timestamp(cells: Cells) -> Text:
    """Read timestamps of the old format: four bytes of seconds since 1970, little-endian."""
    return Text(fixed(np.hstack(format_seconds(cells.little(4).view(np.int64)))))


def old_time(cells: Cells) -> Text:
    """Read times of the old format: three bytes, the signed number with the digits HHMMSS."""
    number = cells.little(3).view(np.int64) << 40 >> 40
    size = np.abs(number)
    return format_times(number < 0, size // 10_000, size // 100 % 100, size % 100, [])


def _read_fractions(cells: Cells, offset: int, fraction: int) -> list[Bytes]:
    return format_fractions(cells.big(offset, fraction_bytes(fraction)), fraction) if fraction else []
