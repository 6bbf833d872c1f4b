"""The text of MySQL's dates and times, from columns of numbers.

Place: below ``mysql_times``, which reads the numbers. Guarantee: the text is what the server prints in time zone
+00:00, zero parts and zero dates included.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dblake.payloads.decode.mysql_characters import digits, trimmed
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.payloads import Bytes, Index, Mask

_DAY_SECONDS = 86_400
_DAYS = pa.array(np.datetime_as_string(np.arange(2**32 // _DAY_SECONDS + 1).astype("datetime64[D]")), pa.string())
"""Every day that 32 bits of seconds since 1970 can express."""
_DAY_TEXT = np.frombuffer(_DAYS.buffers()[2], np.uint8).reshape(-1, 10)
_DATE_WIDTH, _CLOCK_WIDTH = len("YYYY-MM-DD"), len("HH:MM:SS")


def fraction_bytes(fraction: int) -> int:
    """Return the bytes of a fraction of seconds with this number of digits."""
    return (fraction + 1) // 2


def format_seconds(seconds: Index) -> list[Bytes]:
    """Format the date and the time of day of seconds since 1970; 0 is the zero date."""
    day, second = seconds // _DAY_SECONDS, seconds % _DAY_SECONDS
    dates = _DAY_TEXT[day]
    dates[seconds == 0] = np.frombuffer(b"0000-00-00", np.uint8)
    return [dates, format_clocks(second // 3600 << 12 | second // 60 % 60 << 6 | second % 60)]


def format_dates(year: Index, month: Index, day: Index) -> Bytes:
    """Format dates as YYYY-MM-DD."""
    out = np.full((len(year), _DATE_WIDTH), ord("-"), np.uint8)
    out[:, 0:4], out[:, 5:7], out[:, 8:10] = digits(year, 4), digits(month, 2), digits(day, 2)
    return out


def format_clocks(clock: Index) -> Bytes:
    """Format a blank and the time of day, whose parts have 5, 6 and 6 bits."""
    out = np.full((len(clock), 1 + _CLOCK_WIDTH), ord(":"), np.uint8)
    out[:, 0] = ord(" ")
    out[:, 1:3], out[:, 4:6], out[:, 7:9] = digits(clock >> 12, 2), digits(clock >> 6 & 63, 2), digits(clock & 63, 2)
    return out


def format_fractions(number: Index, fraction: int) -> list[Bytes]:
    """Format the point and the digits; they are stored in pairs, so an odd number of them has a zero behind it."""
    if not fraction:
        return []
    tail = fraction_bytes(fraction)
    decimals = digits(number & ((1 << 8 * tail) - 1), 2 * tail)[:, :fraction]
    return [np.full((len(number), 1), ord("."), np.uint8), decimals]


def format_times(negative: Mask, hours: Index, minutes: Index, seconds: Index, decimals: list[Bytes]) -> Text:
    """Return signed times; hours have three digits only from 100 on."""
    out = np.full((len(hours), 2 + _CLOCK_WIDTH), ord(":"), np.uint8)
    out[:, 1:4], out[:, 5:7], out[:, 8:10] = digits(hours, 3), digits(minutes, 2), digits(seconds, 2)
    out = np.hstack([out, *decimals])
    lead = np.where(hours >= 100, 1, 2)
    signed = np.flatnonzero(negative)
    lead[signed] -= 1
    out[signed, lead[signed]] = ord("-")
    return Text(trimmed(out, lead))
