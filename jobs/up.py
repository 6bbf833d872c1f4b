"""``up``: capture, ``run --continuous`` and all outputs as one command, supervised."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import click

from dblake.config import Config
from dblake.operate.status.page_server import READING_SECONDS
from jobs.cli.frame import job_options, run_job
from jobs.cli.options import port_option
from jobs.cli.parts import job_part, output_parts, run_parts


@click.command("up")
@job_options
@port_option("--metrics-port", "Serve metrics for Prometheus at /metrics.")
@port_option("--report-port", "Serve the page of `report`, which reloads itself.")
def up(config: Config, metrics_port: int | None, report_port: int | None) -> int:
    """Replicate a source: run capture, run --continuous, and every configured output, until Ctrl-C or SIGTERM.

    A job that ends with 75, or is killed, starts again, after a pause of 1 s that doubles up to 60 s. Any other exit
    code of capture or run stops all jobs and is this command's. An output that fails for good is logged, and stops
    alone. All output goes to stderr, each line with the job's name. One Ctrl-C or SIGTERM stops all jobs within 10 s;
    another Ctrl-C kills them.

    With a hook in `alerts`, a process of its own calls it within 30 s after a problem has begun or ended. Metrics and
    report are for this machine, unless `status.listen` names another address.
    """
    parts = [job_part("capture", "capture"), job_part("run", "run", "--continuous"), *output_parts(config.outputs)]
    watching = [*(["--alert"] if config.alerts.has_hook else []),
                *(["--metrics-port", str(metrics_port)] if metrics_port else [])]
    if watching:
        parts.append(job_part("status", "status", *watching, "--every", str(READING_SECONDS), is_essential=False))
    if report_port:
        parts.append(job_part("report", "report", "--port", str(report_port), is_essential=False))
    return run_parts(parts)


if __name__ == "__main__":
    run_job(up)
