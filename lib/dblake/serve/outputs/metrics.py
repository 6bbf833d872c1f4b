"""Counts of a delivery, and their form as metrics in Prometheus' text format.

The file is for node_exporter's textfile collector, like the metrics file of ``status``. Metrics hold numbers and names
only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from dblake.base.core.errors import UsageError
from dblake.base.core.position import Position
from dblake.serve.consume.model import Transaction

_FIGURES = {
    "events": "Events delivered since the job started",
    "transactions": "Transactions delivered since the job started",
    "retries": "Attempts that failed since the job started",
    "dead_letters": "Dead letters since the job started",
}


@dataclass(slots=True)
class DeliveryCounts:
    """What a delivery did since it started. ``lag_seconds`` is the newest transaction's lag when it was written."""

    events: int = 0
    transactions: int = 0
    retries: int = 0
    dead_letters: int = 0
    position: Position | None = None
    lag_seconds: float | None = None

    def add(self, batch: Sequence[Transaction]) -> None:
        """Count a batch that was written."""
        self.events += sum(len(one.events) for one in batch)
        self.transactions += sum(one.control is None for one in batch)
        self.position = batch[-1].position
        committed = next((one.committed_at for one in reversed(batch) if one.committed_at is not None), None)
        if committed is not None:
            self.lag_seconds = max(time.time() - committed.timestamp(), 0.0)


def write_delivery_metrics(labels: Mapping[str, str], counts: DeliveryCounts, path: Path) -> None:
    """Write a delivery's metrics to a file, which is replaced atomically. Raises UsageError if it cannot be written."""
    registry = CollectorRegistry()
    for name, text in _FIGURES.items():
        gauge = Gauge(f"dblake_output_{name}", text, tuple(labels), registry=registry)
        gauge.labels(**labels).set(getattr(counts, name))
    if counts.lag_seconds is not None:
        Gauge(
            "dblake_output_lag_seconds", "Seconds from a transaction's commit to its delivery", tuple(labels),
            registry=registry,
        ).labels(**labels).set(counts.lag_seconds)
    Gauge(
        "dblake_output_time_seconds", "Unix time at which this file was written", tuple(labels), registry=registry
    ).labels(**labels).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise UsageError(
            f"the metrics cannot be written to {path}: {error.strerror}", next_step="name a file in a writable folder"
        ) from error
