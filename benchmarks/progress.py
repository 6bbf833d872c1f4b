"""What a run of the benchmark tells while it goes on."""

from __future__ import annotations

import time

from rich.console import Console

from benchmarks.comparison import Comparison


class Progress:
    """Tells what is done and what was found."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def log(self, text: str) -> None:
        """What comes next."""
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")

    def report(self, comparison: Comparison) -> None:
        """One result, all its runs."""
        for side in (comparison.ours, comparison.peer):
            each = " ".join(f"{s:.2f}" for s in side.seconds)
            self._console.print(f"         {side.what}: {each} s", highlight=False)
        self._console.print(f"         ratio {comparison.ratio:.2f}", highlight=False)
