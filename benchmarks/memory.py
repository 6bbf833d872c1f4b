"""Benchmark capture's peak memory, which must not depend on the amount of data.

Measures an amount and ten times as much, one large transaction, and a thousand tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.database import Bench
from benchmarks.process import ProcessResult

LIMIT_MB = 400
_MAX_GROWTH = 1.25
_TABLES = 1000


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak memory of a run in MB, with its rows, its batches and its seconds from start to end."""

    what: str
    rows: int
    mb: float
    seconds: float
    batches: int

    @classmethod
    def of(cls, what: str, rows: int, ran: ProcessResult) -> Peak:
        """Return the peak of a run. Raises RuntimeError if it landed fewer than ``rows``."""
        landed = json.loads(ran.output)
        if landed["rows"] < rows:
            raise RuntimeError(f"{what}: capture landed {landed['rows']} of {rows} rows")
        return cls(what, rows, ran.peak_mb, ran.seconds, landed["batches"])

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "what": self.what, "rows": self.rows, "mb": round(self.mb), "seconds": round(self.seconds, 2),
            "batches": self.batches,
        }


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks ``small`` and ``large``, in MB, of landing ``small_rows`` and ``large_rows`` from log and dump."""

    small: float
    small_rows: int
    large: float
    large_rows: int
    also: tuple[Peak, ...] = ()

    @property
    def met(self) -> bool:
        """True if every peak is within the limit and ten times as much data adds at most a quarter."""
        highest = max(self.small, self.large, *(peak.mb for peak in self.also))
        return highest <= LIMIT_MB and self.large <= self.small * _MAX_GROWTH

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "name": "capture's peak memory", "mb": round(self.small), "rows": self.small_rows,
            "mb_at_ten_times": round(self.large), "rows_at_ten_times": self.large_rows,
            "also": [peak.facts() for peak in self.also],
            "target": f"≤ {LIMIT_MB} MB and about the same", "met": self.met,
        }


def measure(bench: Bench, small: float, small_rows: int, rows: int, at_once: int) -> Peaks:
    """Grow the table to ``rows``, then capture that log together with a dump of the whole table.

    Then capture a transaction of ``at_once`` rows, and a thousand tables, without a dump and with a dump of all.
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
