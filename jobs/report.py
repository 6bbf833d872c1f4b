"""``report``: write one HTML page with plots of operations, lag, dumps, verification and problems, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

from datetime import UTC, datetime
from pathlib import Path

import click

from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.operate.report.build import Limits, build_report, rank_tables
from dblake.operate.report.page import render_page, write_page
from dblake.operate.report.period import parse_duration
from jobs.cli.frame import job_options, run_job
from pipelines.status import read_status


@click.command("report")
@job_options
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE",
              default=Path("report.html"), show_default=True,
              help="The page to write, replaced as a whole; - is standard output.")
@click.option("--since", default="24h", show_default=True, metavar="DURATION",
              help="Length of the period shown, up to now: a number and s, m, h or d. A minute is a bucket of up to 24 "
                   "hours; longer periods have larger buckets.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
def report(config: Config, output: Path, since: str, offline: bool) -> None:
    """Write one self-contained HTML page for a browser: what `status` reports, with plots.

    It has operations per table and minute with drops and spikes against the table's own past, the history of lag,
    dumps, how old verifications are, and open problems with their next steps. It starts no JVM, and exits 0 whatever it
    reports.
    """
    length = parse_duration(since)
    document = read_status(config, ask_source=not offline)
    limits = Limits(config.status.late_seconds, config.verify.max_age_seconds)
    paths = Paths(config.warehouse, config.source.name)
    made = build_report(paths, document, length, datetime.now(UTC), limits)
    page = render_page(made)
    if output == Path("-"):
        click.echo(page, nl=False)
        return
    write_page(output, page)
    abnormal = f"{len(made.episodes)} of {len(rank_tables(made))} that changed"
    click.echo(f"{output}: open problems: {len(document['problems'])}; tables with drops or spikes: {abnormal}")


if __name__ == "__main__":
    run_job(report)
