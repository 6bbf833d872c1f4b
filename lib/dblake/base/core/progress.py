"""Report how far a long piece of work is, to whatever shows it to a person.

A stage of work counts its units (batches, tables, suites) and rows; a reporter, which a job sets once, shows them.
Without one, as in tests and on executors, stages only count. A stage is a step of ``steps``, too, and so is traced.
Guarantee: reporting never delays or fails the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from dblake.base.core.steps import step


@dataclass
class Stage:
    """One piece of work: ``done`` of ``total`` units, and rows. ``total`` is None while it is unknown."""

    name: str
    unit: str
    total: int | None = None
    done: int = 0
    rows: int = 0
    note: str = ""
    began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def advance(self, units: int = 1, rows: int = 0, note: str = "") -> None:
        """Count units and rows that are done; ``note`` names the one in progress. May be called by any thread."""
        with self._lock:
            self.done += units
            self.rows += rows
            self.note = note or self.note

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self.began

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to the end; None before the first unit is done or without a total."""
        if not self.total or not self.done:
            return None
        return self.seconds * max(self.total - self.done, 0) / self.done

    def describe(self) -> str:
        """Return the state in one line: stage, units, rows per second and time left, as far as known."""
        unit = f"{self.unit}s" if self.total is None and self.done != 1 else self.unit
        count = f"{self.done:,} {unit}" if self.total is None else f"{unit} {self.done:,} of {self.total:,}"
        parts = [f"{self.name}: {count}"]
        if self.note:
            parts.append(self.note)
        if self.rows:
            parts.append(f"{self.rows / max(self.seconds, 0.001):,.0f} rows/s")
        if self.seconds_left is not None:
            parts.append(f"{format_seconds(self.seconds_left)} left")
        else:
            parts.append(f"{format_seconds(self.seconds)} so far")
        return ", ".join(parts)


class Reporter(Protocol):
    """Shows stages."""

    def began(self, stage: Stage) -> None:
        """Show a stage from now on; it changes without notice."""
        ...

    def ended(self, stage: Stage) -> None:
        """Show the stage no longer."""
        ...


_reporter: Reporter | None = None


def report_to(reporter: Reporter | None) -> None:
    """Set this process's reporter; None reports nothing."""
    global _reporter
    _reporter = reporter


@contextmanager
def stage(name: str, unit: str, total: int | None = None) -> Iterator[Stage]:
    """Report and trace a piece of work within the block. ``unit`` is a noun in the singular."""
    reporter, work = _reporter, Stage(name, unit, total)
    with step(name) as span:
        if reporter:
            reporter.began(work)
        try:
            yield work
        finally:
            span.note(unit=unit, units=work.done, rows=work.rows)
            if reporter:
                reporter.ended(work)


def format_seconds(seconds: float) -> str:
    """Return a duration as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
