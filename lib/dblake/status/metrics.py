"""``status`` as metrics, in the text format Prometheus reads; of numbers and names alone.

The file is for node_exporter's textfile collector, or for a sidecar that serves it. Every figure carries the source's
name; one that is not known is not there, since a zero would say that all is well.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from dblake.capture.dump_task import DumpState
from dblake.core.errors import UsageError

_STAGES = {
    "lag_seconds": "Seconds since the newest change a stage holds was committed",
    "lag_bytes": "Bytes that wait for a stage in the stage before it",
    "lag_transactions": "Transactions that wait for a stage in landing",
}
_LOG = {
    "kept": "Bytes of log the database keeps",
    "room": "Bytes of log the database may still write before it lets go of what has not landed",
    "seconds": "Seconds after which the database lets go of log",
}
_DUMPS = {
    "rows": "Rows of a dump that have landed",
    "rows_expected": "About how many rows its table has",
    "rows_per_second": "Rows a dump has landed a second",
    "seconds_left": "About how long a dump will still take",
}


def write_metrics(document: dict[str, Any], path: Path) -> None:
    """Puts the metrics of a status document there, in place of what was there, whole or not at all."""
    registry, source = CollectorRegistry(), document["source"]

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dblake_{name}", text, ("source", *labels), registry=registry)

    for figure, text in _STAGES.items():
        of_stage = gauge(figure, text, "stage")
        for stage, values in document["stages"].items():
            if values[figure] is not None:
                of_stage.labels(source, stage).set(values[figure])
    if document["log"]:
        for figure, text in _LOG.items():
            if document["log"][figure] is not None:
                gauge(f"log_{figure}", text).labels(source).set(document["log"][figure])
    under_way = [dump for dump in document["dumps"] if not DumpState(dump["state"]).is_final]
    for figure, text in _DUMPS.items():
        of_dump = gauge(f"dump_{figure}", text, "dump", "table")
        for dump in under_way:
            if dump[figure] is not None:
                of_dump.labels(source, dump["id"], dump["table"]).set(dump[figure])
    problems = gauge("problems", "What needs somebody, by code", "code")
    for code, count in Counter(problem["code"] for problem in document["problems"]).items():
        problems.labels(source, code).set(count)
    gauge("status_time_seconds", "When this was written, since 1970").labels(source).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise UsageError(
            f"the metrics cannot be written to {path}: {error.strerror}", next_step="name a file in a writable folder"
        ) from error
