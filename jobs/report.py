"""``report``: one HTML page with plots of operations, lag, dumps, verification and problems, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from dblake.base.core.errors import DblakeError, UsageError
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.ingest.capture.progress import ProgressStore, open_progress
from dblake.operate.report.build import Limits, Report, build_report, rank_tables
from dblake.operate.report.page import render_page, write_page
from dblake.operate.report.period import parse_duration
from dblake.operate.status.page_server import PageServer
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.options import port_option
from pipelines.status import read_status

logger = logging.getLogger(f"dblake.{__name__}")

_FILE = Path("report.html")
_RELOAD_SECONDS = 15.0
_MAX_SHARE = 0.1
"""Of the time that making the page again may take: the lake of a busy source is large."""


@click.command("report")
@job_options
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE",
              help="The page to write, replaced as a whole; - is standard output. Default: report.html.")
@click.option("--since", default="24h", show_default=True, metavar="DURATION",
              help="Length of the period shown, up to now: a number and s, m, h or d. A minute is a bucket of up to 24 "
                   "hours; longer periods have larger buckets.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
@port_option("--port", "Serve the page instead of writing it, made again every 15 s, until SIGTERM or Ctrl-C.")
def report(config: Config, output: Path | None, since: str, offline: bool, port: int | None) -> None:
    """Write one self-contained HTML page for a browser: what `status` reports, with plots.

    It has operations per table and minute with drops and spikes against the table's own past, the history of lag,
    dumps, how old verifications are, and open problems with their next steps. It starts no JVM, and exits 0 whatever it
    reports. With --port the page reloads itself: this is what `up --report-port` runs.
    """
    length, store = parse_duration(since), open_progress(config.progress, config.source.name)
    if port is not None:
        if output is not None:
            raise UsageError("--port with --output", next_step="omit one of them")
        _serve(config, store, length, port, offline=offline)
        return
    made = _build(config, store, length, offline=offline)
    page, output = render_page(made), output or _FILE
    if output == Path("-"):
        click.echo(page, nl=False)
        return
    write_page(output, page)
    abnormal = f"{len(made.episodes)} of {len(rank_tables(made))} that changed"
    click.echo(f"{output}: open problems: {len(made.document['problems'])}; tables with drops or spikes: {abnormal}")


def _build(config: Config, store: ProgressStore, length: timedelta, *, offline: bool) -> Report:
    document = read_status(config, store, ask_source=not offline)
    limits = Limits(config.status.late_seconds, config.verify.max_age_seconds)
    return build_report(Paths(config.warehouse, config.source.name), document, length, datetime.now(UTC), limits)


def _serve(config: Config, store: ProgressStore, length: timedelta, port: int, *, offline: bool) -> None:
    with stop_requested() as stop, PageServer(config.status.listen, port) as server:
        logger.info("report: http://%s:%d/", config.status.listen, server.port)
        while not stop.is_set():
            began = time.monotonic()
            try:
                page = render_page(_build(config, store, length, offline=offline), _RELOAD_SECONDS)
                server.publish("/", "text/html; charset=utf-8", page.encode())
            except Exception as error:  # noqa: BLE001 - the page must not end with one reading that fails
                what = str(error) if isinstance(error, DblakeError) else f"unexpected {type(error).__name__}"
                logger.warning("report: %s", what)
            stop.wait(max(_RELOAD_SECONDS, (time.monotonic() - began) / _MAX_SHARE))


if __name__ == "__main__":
    run_job(report)
