"""``status``: report each stage's lag, the database's log, dumps and open problems, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from dblake.base.core.errors import UsageError
from dblake.config import Config
from dblake.operate.status.metrics import write_metrics
from dblake.operate.status.screen import build_screen
from jobs.cli.frame import job_options, run_job
from pipelines.status import read_status


@click.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also write metrics for node_exporter's textfile collector; the file name must end in .prom.")
@click.option("--tables", is_flag=True, help="List all tables, however many there are, with their rows.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
def status(config: Config, as_json: bool, prometheus: Path | None, offline: bool, tables: bool) -> None:
    """Report whether capture runs, how far each stage is, tables, dumps, and what to do.

    It starts no JVM, and exits 0 whatever it reports.
    """
    if prometheus and prometheus.suffix != ".prom":
        raise UsageError(f"node_exporter ignores a file without .prom: {prometheus.name}",
                         next_step=f"write to {prometheus.stem}.prom")
    document = read_status(config, ask_source=not offline, all_tables=tables)
    if prometheus:
        write_metrics(document, prometheus)
    if as_json:
        click.echo(json.dumps(document))
        return
    for line in build_screen(document, datetime.now(UTC), all_tables=tables):
        click.echo(line)


if __name__ == "__main__":
    run_job(status)
