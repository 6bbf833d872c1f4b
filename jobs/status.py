"""``status``: report each stage's lag, the database's log, dumps and open problems, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
import logging
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import click

from dblake.base.core.errors import DblakeError, ExitCode, UsageError
from dblake.config import Config
from dblake.ingest.capture.progress import open_progress
from dblake.operate.alerts.announce import announce
from dblake.operate.alerts.hooks import make_hooks
from dblake.operate.status.metrics import publish_metrics, write_metrics
from dblake.operate.status.page_server import READING_SECONDS, PageServer
from dblake.operate.status.screen import build_screen
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.options import port_option
from pipelines.status import read_status

logger = logging.getLogger(f"dblake.{__name__}")


@click.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also write metrics for node_exporter's textfile collector; the file name must end in .prom.")
@click.option("--tables", is_flag=True, help="List all tables, however many there are, with their rows.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
@click.option("--alert", is_flag=True,
              help="Also call the hooks of `alerts` for problems that began or ended since the last call.")
@port_option("--metrics-port", "Serve metrics for Prometheus at /metrics, read every 15 s or as often as --every.")
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Repeat until SIGTERM or Ctrl-C.")
def status(
    config: Config, as_json: bool, prometheus: Path | None, offline: bool, tables: bool, alert: bool,
    metrics_port: int | None, every: float | None,
) -> int:
    """Report whether capture runs, how far each stage is, tables, dumps, outputs, and what to do.

    It starts no JVM, and exits 0 whatever it reports; with --alert 75 if a hook failed. With --metrics-port, and with
    --every and --alert, it prints nothing but failures: this is what `up` runs.
    """
    if prometheus and prometheus.suffix != ".prom":
        raise UsageError(f"node_exporter ignores a file without .prom: {prometheus.name}",
                         next_step=f"write to {prometheus.stem}.prom")
    source, alerts = config.source.name, config.alerts
    hooks = make_hooks(alerts.read_webhook(), alerts.command, alerts.timeout_seconds) if alert else []

    if metrics_port and not every:
        every = READING_SECONDS
    server = _open_server(config.status.listen, metrics_port, is_needed=not alert) if metrics_port else None
    # One store: in ZooKeeper each opens a session of its own.
    store = open_progress(config.progress, source)

    def report() -> bool:
        """Report once; return False if a hook failed."""
        document = read_status(config, store, ask_source=not offline, all_tables=tables)
        if prometheus:
            write_metrics(document, prometheus)
        if server:
            publish_metrics(document, server)
        errors = announce(source, document["problems"], hooks, store) if alert else []
        if as_json:
            click.echo(json.dumps(document))
        elif not (server or (alert and every)):
            for line in build_screen(document, datetime.now(UTC), all_tables=tables):
                click.echo(line)
        return not errors

    if every is None:
        return ExitCode.DONE if report() else ExitCode.TRY_AGAIN
    with stop_requested() as stop, server or nullcontext():
        while not stop.is_set():
            try:
                report()
            except Exception as error:  # noqa: BLE001 - alerts and metrics must not end with one reading that fails
                what = str(error) if isinstance(error, DblakeError) else f"unexpected {type(error).__name__}"
                logger.warning("status: %s", what)
            stop.wait(every)
    return ExitCode.DONE


def _open_server(host: str, port: int, *, is_needed: bool) -> PageServer | None:
    """Open a port for metrics; one that is not needed, because there are alerts, is logged if that fails."""
    try:
        return PageServer(host, port)
    except UsageError as error:
        if is_needed:
            raise
        logger.error("%s; there are no metrics until then, but alerts", error)  # noqa: TRY400 - its text is complete
        return None


if __name__ == "__main__":
    run_job(status)
