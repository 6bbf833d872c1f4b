"""Counts of a delivery, and their form as metrics in Prometheus' text format.

Place: ``reporter`` writes the file every few seconds, for node_exporter's textfile collector; ``status`` has its own.
Guarantee: metrics hold numbers and names only; lag is of the moment of writing.
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
from dblake.serve.consume.pending import Pending

_FIGURES = {
    "events": "Events delivered since the job started",
    "transactions": "Transactions delivered since the job started",
    "retries": "Attempts that failed since the job started",
    "dead_letters": "Dead letters since the job started",
}


@dataclass(slots=True)
class DeliveryCounts:
    """What a delivery did since it started."""

    events: int = 0
    transactions: int = 0
    retries: int = 0
    dead_letters: int = 0
    position: Position | None = None

    def add(self, batch: Sequence[Transaction]) -> None:
        """Count a batch that was written."""
        self.events += sum(len(one.events) for one in batch)
        self.transactions += sum(one.control is None for one in batch)
        self.position = batch[-1].position


@dataclass(frozen=True)
class MetricsFile:
    """A metrics file, whose samples have these labels."""

    path: Path
    labels: Mapping[str, str]

    def write(self, counts: DeliveryCounts, pending: Pending | None, rate: float) -> None:
        """Replace the file atomically. ``pending`` is None if unknown. Raises UsageError if it cannot be written."""
        registry, labels = CollectorRegistry(), self.labels

        def set_gauge(name: str, text: str, value: float) -> None:
            Gauge(f"dblake_output_{name}", text, tuple(labels), registry=registry).labels(**labels).set(value)

        for name, text in _FIGURES.items():
            set_gauge(name, text, getattr(counts, name))
        set_gauge("rate", "Events delivered per second in the last minute", rate)
        if pending is not None:
            set_gauge("lag_seconds", "Age of the oldest transaction in events that is not delivered", pending.seconds)
            set_gauge("lag_bytes", "Bytes of events that are not delivered, about", pending.bytes)
        set_gauge("time_seconds", "Unix time at which this file was written", time.time())
        try:
            write_to_textfile(str(self.path), registry)
        except OSError as error:
            raise UsageError(
                f"the metrics cannot be written to {self.path}: {error.strerror}",
                next_step="name a file in a writable folder",
            ) from error
