"""``benchmark --spark``: the stages right of landing beside plain Spark doing the same to the same rows.

Ours and the peer run in turn in one process tree, in one warm session or as jobs of their own. CPU seconds are those of
the whole tree: this process, the JVM and Spark's Python workers. A stage's module lists its parts in ``PARTS``.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.capture_job import ENVIRONMENT
from benchmarks.process import run

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took, in wall and in CPU seconds."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the result: a work, its runs, its peer's runs, and a target in words with whether it was met."""

    work: str
    rows: int
    ours: Sequence[Cost]
    peer: Sequence[Cost] = ()
    target: str = ""
    met: bool | None = None
    facts: Mapping[str, float] | None = None

    @property
    def cpu_ratio(self) -> float | None:
        """CPU seconds of the median run beside the peer's."""
        return median_cpu(self.ours) / median_cpu(self.peer) if self.peer else None

    @property
    def time_ratio(self) -> float | None:
        """Wall seconds of the median run beside the peer's."""
        return median_seconds(self.ours) / median_seconds(self.peer) if self.peer else None

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "work": self.work, "rows": self.rows, "seconds": [round(cost.seconds, 2) for cost in self.ours],
            "cpu_seconds": [round(cost.cpu_seconds, 2) for cost in self.ours],
            "peer_seconds": [round(cost.seconds, 2) for cost in self.peer],
            "peer_cpu_seconds": [round(cost.cpu_seconds, 2) for cost in self.peer],
            "cpu_ratio": self.cpu_ratio, "time_ratio": self.time_ratio, "target": self.target, "met": self.met,
            **(self.facts or {}),
        }


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure: gets an empty folder and how many runs of each are wanted."""

    name: str
    measure: Callable[[Path, int], Sequence[Measured]]


def parts() -> list[Part]:
    """Return all parts, in the order in which they are measured."""
    from benchmarks import event_layout, first_load, reconcile, state

    return [*first_load.PARTS, *reconcile.PARTS, *event_layout.PARTS, *state.PARTS]


def median_seconds(costs: Sequence[Cost]) -> float:
    """Return the wall seconds of the median run."""
    return median(cost.seconds for cost in costs)


def median_cpu(costs: Sequence[Cost]) -> float:
    """Return the CPU seconds of the median run."""
    return median(cost.cpu_seconds for cost in costs)


def cost_of(job: Callable[[], object]) -> Cost:
    """Run a job in this process tree; return what it took."""
    began, cpu = time.perf_counter(), tree_cpu_seconds()
    job()
    return Cost(time.perf_counter() - began, tree_cpu_seconds() - cpu)


def run_with_children(command: Sequence[str]) -> None:
    """Run a job of ours; wait also for the JVM that it leaves behind, so that its CPU time counts."""
    _adopt_orphans()
    before = _children()
    run(command, ENVIRONMENT)
    for process in _children() - before:
        os.waitpid(process, 0)


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (``PR_SET_CHILD_SUBREAPER``)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _children() -> set[int]:
    """Return the processes whose parent is this one."""
    listed = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {int(child) for task in listed for child in (task / "children").read_text("ascii").split()}


def tree_cpu_seconds(root: int | None = None) -> float:
    """Return the CPU seconds that a process and all its descendants have used, ended ones that were waited for too."""
    found: dict[int, tuple[int, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            found[int(name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    children: dict[int, list[int]] = {}
    for process, (parent, _) in found.items():
        children.setdefault(parent, []).append(process)
    total, waiting = 0.0, [root or os.getpid()]
    while waiting:
        process = waiting.pop()
        total += found[process][1] if process in found else 0.0
        waiting += children.get(process, [])
    return total
