"""Capture's peak memory: with much and with ten times as much, with all of it in one transaction, with many tables.

It should not be able to tell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.database import Bench
from benchmarks.process import ProcessResult

LIMIT_MB = 400
_ABOUT_THE_SAME = 1.25
_TABLES = 1000


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory in MB that a run took, for so many rows in so many batches, and its seconds from start to end."""

    what: str
    rows: int
    mb: float
    seconds: float
    batches: int

    @classmethod
    def of(cls, what: str, rows: int, ran: ProcessResult) -> Peak:
        """A run's, which must have landed at least so many rows."""
        said = json.loads(ran.output)
        if said["rows"] < rows:
            raise RuntimeError(f"{what}: capture landed {said['rows']} of {rows} rows")
        return cls(what, rows, ran.peak_mb, ran.seconds, said["batches"])

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "what": self.what, "rows": self.rows, "mb": round(self.mb), "seconds": round(self.seconds, 2),
            "batches": self.batches,
        }


@dataclass(frozen=True, slots=True)
class Peaks:
    """``small`` and ``large`` are in MB, after ``small_rows`` and ``large_rows`` were landed from log and dump."""

    small: float
    small_rows: int
    large: float
    large_rows: int
    also: tuple[Peak, ...] = ()

    @property
    def met(self) -> bool:
        """True if all keep to the limit, and ten times as much makes little difference."""
        most = max(self.small, self.large, *(peak.mb for peak in self.also))
        return most <= LIMIT_MB and self.large <= self.small * _ABOUT_THE_SAME

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": "capture's peak memory", "mb": round(self.small), "rows": self.small_rows,
            "mb_at_ten_times": round(self.large), "rows_at_ten_times": self.large_rows,
            "also": [peak.facts() for peak in self.also],
            "target": f"≤ {LIMIT_MB} MB and about the same", "met": self.met,
        }


def measure(bench: Bench, small: float, small_rows: int, rows: int, at_once: int) -> Peaks:
    """Lets the table grow to ``rows``, then captures the log of that together with a dump of all of it.

    Then a transaction of ``at_once`` rows, and a thousand tables, without a dump and with one of all of them.
    """
    bench.create_slot("before_growth")
    grown = bench.grow(rows)
    with bench.copied_slot("before_growth") as copy:
        ran = bench.capture(copy, "ten_times", dump=True)
    return Peaks(small, small_rows, ran.peak_mb, grown + rows, (_at_once(bench, at_once), *_many_tables(bench)))


def _at_once(bench: Bench, rows: int) -> Peak:
    bench.create_slot("before_transaction")
    bench.insert_at_once(rows)
    with bench.copied_slot("before_transaction") as copy:
        return Peak.of("one transaction", rows, bench.capture(copy, "at_once", dump=False))


def _many_tables(bench: Bench) -> tuple[Peak, Peak]:
    names = bench.make_tables(_TABLES)
    bench.create_slot("before_tables")
    with bench.copied_slot("before_tables") as copy:
        idle = Peak.of(f"{_TABLES:,} tables, nothing to land", 0, bench.capture(copy, "tables", dump=False))
    with bench.copied_slot("before_tables") as copy:
        dumped = bench.capture(copy, "tables_dumped", dump=True, tables=names)
    return idle, Peak.of(f"{_TABLES:,} tables, all of them dumped", 2 * _TABLES, dumped)
