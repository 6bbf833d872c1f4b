"""Show how far a job is: bars on a terminal, otherwise one line a minute; both on stderr.

``show_progress`` sets the process's reporter (``core.progress``) for the time of a block.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from dblake.base.core.progress import Stage, format_seconds, report_to

LINE_SECONDS = 60.0
_DRAW_SECONDS = 0.5

logger = logging.getLogger("dblake.progress")


@contextmanager
def show_progress() -> Iterator[None]:
    """Show the stages of work within the block."""
    console = Console(stderr=True)
    reporter: _Lines | _Bars = _Bars(console) if console.is_terminal else _Lines()
    report_to(reporter)
    try:
        yield
    finally:
        report_to(None)
        reporter.close()


class _Lines:
    """Logs a line for each stage that runs, once a minute."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._log_lines, name="progress", daemon=True).start()

    def began(self, stage: Stage) -> None:
        with self._lock:
            self._stages.append(stage)

    def ended(self, stage: Stage) -> None:
        with self._lock:
            self._stages.remove(stage)

    def close(self) -> None:
        """Log no more."""
        self._closed.set()

    def _log_lines(self) -> None:
        while not self._closed.wait(LINE_SECONDS):
            with self._lock:
                stages = list(self._stages)
            for each in stages:
                logger.info("%s", each.describe())


class _Bars:
    """Draws a bar for each stage that runs; a stage that has ended leaves no trace."""

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False), TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._bars: list[tuple[Stage, TaskID]] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._draw, name="progress", daemon=True).start()

    def began(self, stage: Stage) -> None:
        with self._lock:
            if not self._bars:
                self._progress.start()
            bar = self._progress.add_task(stage.name, total=stage.total, text="")
            self._bars.append((stage, bar))

    def ended(self, stage: Stage) -> None:
        with self._lock:
            for one in [pair for pair in self._bars if pair[0] is stage]:
                self._bars.remove(one)
                self._progress.remove_task(one[1])
            if not self._bars:
                self._progress.stop()

    def close(self) -> None:
        """Remove all bars."""
        self._closed.set()
        self._progress.stop()

    def _draw(self) -> None:
        while not self._closed.wait(_DRAW_SECONDS):
            with self._lock:
                for stage, bar in self._bars:
                    self._progress.update(bar, total=stage.total, completed=stage.done, text=_facts(stage))


def _facts(stage: Stage) -> str:
    """Return units, rows per second and time left, which stand beside the bar."""
    total = "" if stage.total is None else f" of {stage.total:,}"
    parts = [f"{stage.unit} {stage.done:,}{total}", *([stage.note] if stage.note else [])]
    if stage.rows:
        parts.append(f"{stage.rows / max(stage.seconds, 0.001):,.0f} rows/s")
    if stage.seconds_left is not None:
        parts.append(f"{format_seconds(stage.seconds_left)} left")
    return ", ".join(parts)
