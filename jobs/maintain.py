"""``maintain``: keeps all tables small and fast; to be scheduled every hour or so, beside all other jobs."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from dblake.config import Config
from dblake.lake.layout import Paths
from dblake.maintenance.run import maintain as keep
from dblake.spark.session import spark_session
from jobs.cli.frame import job_options, run_job


@click.command("maintain")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print what was done as a JSON array.")
def maintain(config: Config, as_json: bool) -> None:
    """Put small files together, delete what is past its time, remove old files. Safe beside all other jobs."""
    paths = Paths(config.warehouse, config.source.name)
    results = keep(spark_session("dblake maintain"), paths, config.maintain, parallel=config.state.parallel)
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
        return
    table = Table("table", "files before", "files after", "rows deleted", "old files")
    for result in results:
        table.add_row(result.table, f"{result.files_before:,}", f"{result.files_after:,}", f"{result.rows_deleted:,}",
                      "removed" if result.vacuumed else "")
    Console().print(table)


if __name__ == "__main__":
    run_job(maintain)
