"""The document of ``status`` as metrics in Prometheus' text format.

Place: behind ``status.report``. They go to a file for node_exporter's textfile collector, or to ``page_server``, which
Prometheus scrapes. Every sample carries the source's name. Guarantee: metrics hold numbers and names only, and a figure
that is unknown is omitted, since a zero would mean that nothing is wrong.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest, write_to_textfile

from dblake.base.core.errors import UsageError
from dblake.ingest.capture.dump_task import DumpState
from dblake.operate.status.page_server import PageServer
from dblake.serve.outputs.activity import OutputState

_STAGES = {
    "lag_seconds": "Seconds since the commit of the newest change that a stage holds",
    "lag_bytes": "Bytes pending for a stage in the stage before it",
    "lag_transactions": "Transactions pending for a stage in landing",
}
_LOG = {
    "kept": "Bytes of log that the database retains",
    "room": "Bytes of log that the database can write before it removes log that has not landed",
    "seconds": "Seconds after which the database removes log",
}
_DUMPS = {
    "rows": "Rows of a dump that have landed",
    "rows_expected": "Estimated number of rows in a dump's table",
    "rows_per_second": "Rows of a dump landed per second",
    "seconds_left": "Estimated seconds until a dump is done",
}

_OUTPUTS = {
    "lag_seconds": "Age of the oldest transaction in events that an output has not delivered",
    "lag_bytes": "Bytes of events that an output has not delivered, about",
    "rate": "Events that an output delivered per second in the last minute",
    "dead_letters": "Events that an output's target has rejected",
}
"""Named apart from the samples of the output's own file, which may lie in the same folder."""
_VERIFICATIONS = {
    "age_seconds": "Seconds since a table's newest verification",
    "coverage": "Share of the rows read by a table's newest verification that were compared",
    "differences": "Rows of a table's state that differ from the source",
}


def write_metrics(document: dict[str, Any], path: Path) -> None:
    """Write the metrics of a status document to a file, which is replaced atomically.

    Raises UsageError if the file cannot be written.
    """
    try:
        write_to_textfile(str(path), _make_registry(document))
    except OSError as error:
        raise UsageError(
            f"the metrics cannot be written to {path}: {error.strerror}", next_step="name a file in a writable folder"
        ) from error


def publish_metrics(document: dict[str, Any], server: PageServer) -> None:
    """Serve the metrics of a status document at ``/metrics``."""
    server.publish("/metrics", CONTENT_TYPE_LATEST, generate_latest(_make_registry(document)))


def _make_registry(document: dict[str, Any]) -> CollectorRegistry:
    registry, source = CollectorRegistry(), document["source"]

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dblake_{name}", text, ("source", *labels), registry=registry)

    for figure, text in _STAGES.items():
        stage_gauge = gauge(figure, text, "stage")
        for stage, values in document["stages"].items():
            if values[figure] is not None:
                stage_gauge.labels(source, stage).set(values[figure])
    if document["log"]:
        for figure, text in _LOG.items():
            if document["log"][figure] is not None:
                gauge(f"log_{figure}", text).labels(source).set(document["log"][figure])
    active_dumps = [dump for dump in document["dumps"] if not DumpState(dump["state"]).is_final]
    for figure, text in _DUMPS.items():
        dump_gauge = gauge(f"dump_{figure}", text, "dump", "table")
        for dump in active_dumps:
            if dump[figure] is not None:
                dump_gauge.labels(source, dump["id"], dump["table"]).set(dump[figure])
    for figure, text in _VERIFICATIONS.items():
        verification_gauge = gauge(f"verification_{figure}", text, "table")
        for verification in document["verifications"]:
            verification_gauge.labels(source, verification["table"]).set(verification[figure])
    for figure, text in _OUTPUTS.items():
        output_gauge = gauge(f"status_output_{figure}", text, "output")
        for output in document["outputs"]:
            if output[figure] is not None:
                output_gauge.labels(source, output["name"]).set(output[figure])
    running = gauge("status_output_running", "1 while a process works on an output, else 0", "output")
    for output in document["outputs"]:
        running.labels(source, output["name"]).set(OutputState(output["state"]).is_live)
    problems = gauge("problems", "Open problems by code", "code")
    for code, count in Counter(problem["code"] for problem in document["problems"]).items():
        problems.labels(source, code).set(count)
    gauge("status_time_seconds", "Unix time at which these figures were read").labels(source).set_to_current_time()
    return registry
