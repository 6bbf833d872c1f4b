"""Write durations and sizes as the screen of ``status`` and the page of ``report`` show them: one unit, few digits."""

from __future__ import annotations

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_duration(seconds: float) -> str:
    """Return seconds in the largest unit of which there are at least two: ``0.8 s``, ``41 s``, ``3 h``."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_size(count: float) -> str:
    """Return bytes in the largest unit that fits: ``85.8 MiB``."""
    for size, unit in _SIZES:
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} bytes"
