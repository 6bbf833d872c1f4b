"""Two ways to do the same work, each measured several times, and their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Side:
    """One way: ``seconds`` of each run, and ``cpu_seconds`` if they were measured."""

    what: str
    rows: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()

    @property
    def time(self) -> float:
        """The median of ``seconds``."""
        return median(self.seconds)

    @property
    def rate(self) -> float:
        """Rows per second in the median run."""
        return self.rows / self.time

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "what": self.what, "rows": self.rows, "rows_per_second": round(self.rate),
            "seconds": [round(s, 3) for s in self.seconds], "cpu_seconds": [round(s, 2) for s in self.cpu_seconds],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """dblake beside a peer. With ``least`` the ratio is of the rates, else of the times, with ``most`` as its limit."""

    name: str
    ours: Side
    peer: Side
    least: float | None = None
    most: float | None = None
    also: Sequence[Side] = ()

    @property
    def ratio(self) -> float:
        """Our rate, or time, divided by the peer's."""
        return self.ours.rate / self.peer.rate if self.least is not None else self.ours.time / self.peer.time

    @property
    def target(self) -> str:
        """The target in words; empty if there is none."""
        if self.least is not None:
            return f"≥ {self.least} of its rate"
        return f"≤ {self.most} times its time" if self.most is not None else ""

    @property
    def met(self) -> bool:
        """True if the ratio meets the target, or there is none."""
        return self.ratio >= self.least if self.least is not None else self.most is None or self.ratio <= self.most

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "name": self.name, "ours": self.ours.facts(), "peer": self.peer.facts(), "ratio": round(self.ratio, 3),
            "target": self.target, "met": self.met, "also": [side.facts() for side in self.also],
        }
