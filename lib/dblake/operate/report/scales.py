"""Ticks and labels of the axes: round counts, round times, and lag on a logarithmic scale."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from dblake.operate.report.period import Period

_STEPS = tuple(timedelta(minutes=n) for n in (
    1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10080, 20160, 40320,
))
_TICKS = 6
_ROUND = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
_LAGS = ((0.1, "0.1 s"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36000, "10 h"),
         (86400 * 3, "3 d"), (86400 * 30, "30 d"), (86400 * 365, "1 y"))


def round_up(value: float) -> float:
    """Return the least round count, of two digits at most, that is at least a value; 1 for less than that."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in _ROUND if factor * power >= value * (1 - 1e-9))


def time_ticks(period: Period) -> list[tuple[float, str]]:
    """Return round times of the shown period, each with its place from 0 to 1 and its label in UTC."""
    length = period.end - period.start
    step = next((s for s in _STEPS if length <= _TICKS * s), _STEPS[-1])
    midnight = period.start.replace(hour=0, minute=0, second=0, microsecond=0)
    tick = midnight + -(-(period.start - midnight) // step) * step
    ticks = []
    while tick <= period.end:
        ticks.append(((tick - period.start) / length, _label(tick)))
        tick += step
    return ticks


def _label(time: datetime) -> str:
    return f"{time:%b} {time.day}" if time.hour == time.minute == 0 else f"{time:%H:%M}"


def lag_ticks(greatest: float) -> list[tuple[float, str]]:
    """Return the marks of a logarithmic scale from 0.1 s to beyond the greatest lag, from 0 to 1."""
    number = next((n for n, (seconds, _) in enumerate(_LAGS) if seconds >= greatest and n >= 3), len(_LAGS) - 1)
    top = _LAGS[number][0]
    return [(lag_height(seconds, top), label) for seconds, label in _LAGS[:number + 1]]


def lag_top(greatest: float) -> float:
    """Return the seconds at the top of the scale of ``lag_ticks``."""
    return next((seconds for n, (seconds, _) in enumerate(_LAGS) if seconds >= greatest and n >= 3), _LAGS[-1][0])


def lag_height(seconds: float, top: float) -> float:
    """Return where a lag is on a logarithmic scale from 0.1 s (0) to ``top`` (1)."""
    return min(max((math.log10(max(seconds, 1e-9)) + 1) / (math.log10(top) + 1), 0.0), 1.0)


def format_count(count: float) -> str:
    """Return a count in at most four signs: ``940``, ``12.3k``, ``4.1M``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 9,999 is shown in full, 999,950 as a million.
        if count >= size * (10 if unit == "k" else 0.99995):
            value = count / size
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + unit
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
