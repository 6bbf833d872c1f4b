"""Capture's peak memory with much and with ten times as much to capture: it should not be able to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.database import Bench

LIMIT_MB = 400
_ABOUT_THE_SAME = 1.25


@dataclass(frozen=True, slots=True)
class Peaks:
    """``small`` and ``large`` are in MB, after ``small_rows`` and ``large_rows`` were landed from log and dump."""

    small: float
    small_rows: int
    large: float
    large_rows: int

    @property
    def met(self) -> bool:
        """True if both keep to the limit and differ little."""
        return max(self.small, self.large) <= LIMIT_MB and self.large <= self.small * _ABOUT_THE_SAME

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": "capture's peak memory", "mb": round(self.small), "rows": self.small_rows,
            "mb_at_ten_times": round(self.large), "rows_at_ten_times": self.large_rows,
            "target": f"≤ {LIMIT_MB} MB and about the same", "met": self.met,
        }


def measure(bench: Bench, small: float, small_rows: int, rows: int) -> Peaks:
    """Lets the table grow to ``rows``, then captures the log of that together with a dump of all of it."""
    bench.keep_slot("before_growth")
    grown = bench.grow(rows)
    with bench.copied_slot("before_growth") as copy:
        ran = bench.capture(copy, "ten_times", dump=True)
    return Peaks(small, small_rows, ran.peak_mb, grown + rows)
