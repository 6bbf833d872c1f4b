"""``up``: capture, ``run --continuous`` and all outputs as one command, supervised."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import logging
import time
from pathlib import Path

import click

from dblake.base.core.errors import UsageError
from dblake.config import Config
from dblake.operate.status.page_server import READING_SECONDS
from jobs.cli.frame import conf_option, run_job, use_configuration, verbose_option
from jobs.cli.options import port_option
from jobs.cli.parts import job_part, output_parts, run_parts, watching_part

_DEMO = Path("dblake-demo")

logger = logging.getLogger(f"dblake.{__name__}")


@click.command("up")
@verbose_option
@conf_option
@port_option("--metrics-port", "Serve metrics for Prometheus at /metrics.")
@port_option("--report-port", "Serve the page of `report`, which reloads itself.")
@click.option("--demo", is_flag=True, help=f"Replicate an embedded PostgreSQL with a writer; all files are in the "
                                          f"folder {_DEMO}/, which each start recreates.")
def up(conf: Path | None, metrics_port: int | None, report_port: int | None, *, demo: bool) -> int:
    """Replicate a source: run capture, run --continuous, and every configured output, until Ctrl-C or SIGTERM.

    A job that ends with 75, or is killed, starts again, after a pause of 1 s that doubles up to 60 s. Any other exit
    code of capture or run stops all jobs and is this command's. An output that fails for good is logged, and stops
    alone. All output goes to stderr, each line with the job's name. One Ctrl-C or SIGTERM stops all jobs within 10 s;
    another Ctrl-C kills them.

    With a hook in `alerts`, a process of its own calls it within 30 s after a problem has begun or ended. Metrics and
    report are for this machine, unless `status.listen` names another address.

    With --demo it needs neither a database, a configuration nor a JVM, and serves the report.
    """
    if not demo:
        return _supervise(use_configuration(conf), metrics_port, report_port)
    if conf:
        raise UsageError("--demo with --conf", next_step="omit one of them")
    began = time.monotonic()
    from dblake.ingest.source.postgres.ports import free_port
    from pipelines.demo import announce_rows, demo_database

    logger.info("demo: starting PostgreSQL with a shop and a writer in %s/", _DEMO)
    with demo_database(_DEMO) as file:
        config = use_configuration(file)
        port = report_port or free_port()
        logger.info("demo: http://%s:%d/ shows the report; Ctrl-C ends all", config.status.listen, port)
        announce_rows(config, file, began)
        return _supervise(config, metrics_port, port)


def _supervise(config: Config, metrics_port: int | None, report_port: int | None) -> int:
    parts = [job_part("capture", "capture"), job_part("run", "run", "--continuous"), *output_parts(config.outputs)]
    watching = [*(["--alert"] if config.alerts.has_hook else []),
                *(["--metrics-port", str(metrics_port)] if metrics_port else [])]
    if watching:
        parts.append(watching_part("status", "status", *watching, "--every", str(READING_SECONDS)))
    if report_port:
        parts.append(watching_part("report", "report", "--port", str(report_port)))
    return run_parts(parts)


if __name__ == "__main__":
    run_job(up)
