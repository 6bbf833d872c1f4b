"""The progress output of a benchmark run."""

from __future__ import annotations

import time

from rich.console import Console

from benchmarks.comparison import Comparison


class Progress:
    """Prints each step when it begins and each comparison when it is complete."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def log(self, text: str) -> None:
        """Print the next step."""
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")

    def report(self, comparison: Comparison) -> None:
        """Print a comparison with all its runs."""
        for side in (comparison.ours, comparison.peer):
            each = " ".join(f"{s:.2f}" for s in side.seconds)
            self._console.print(f"         {side.what}: {each} s", highlight=False)
        self._console.print(f"         ratio {comparison.ratio:.2f}", highlight=False)
