"""Two ways to do the same, each measured a few times, and how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Side:
    """One way: ``seconds`` of each run; ``cpu_seconds`` likewise, where it is known."""

    what: str
    rows: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()

    @property
    def time(self) -> float:
        """The median."""
        return median(self.seconds)

    @property
    def rate(self) -> float:
        """Rows a second in the median run."""
        return self.rows / self.time

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "what": self.what, "rows": self.rows, "rows_per_second": round(self.rate),
            "seconds": [round(s, 3) for s in self.seconds], "cpu_seconds": [round(s, 2) for s in self.cpu_seconds],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours beside a peer. The ratio is that of the rates (``least`` is wanted), else of the times (``most`` is)."""

    name: str
    ours: Side
    peer: Side
    least: float | None = None
    most: float | None = None
    also: Sequence[Side] = ()

    @property
    def ratio(self) -> float:
        """Of rates or of times."""
        return self.ours.rate / self.peer.rate if self.least is not None else self.ours.time / self.peer.time

    @property
    def target(self) -> str:
        """In words."""
        if self.least is not None:
            return f"≥ {self.least} of its rate"
        return f"≤ {self.most} times its time" if self.most is not None else ""

    @property
    def met(self) -> bool:
        """True if the ratio is what it should be."""
        return self.ratio >= self.least if self.least is not None else self.most is None or self.ratio <= self.most

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name, "ours": self.ours.facts(), "peer": self.peer.facts(), "ratio": round(self.ratio, 3),
            "target": self.target, "met": self.met, "also": [side.facts() for side in self.also],
        }
