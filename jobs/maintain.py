"""``maintain``: compact, expire and vacuum all tables of a source."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from dblake.config import Config
from dblake.lake.layout import Paths
from dblake.maintenance.run import maintain as run_maintenance
from dblake.spark.session import spark_session
from jobs.cli.frame import job_options, run_job


@click.command("maintain")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the result of each table as a JSON array.")
def maintain(config: Config, as_json: bool) -> None:
    """Compact small files, delete expired rows and vacuum old files. Safe beside all other jobs; run it hourly."""
    paths = Paths(config.warehouse, config.source.name)
    spark = spark_session("dblake maintain", config.warehouse)
    results = run_maintenance(spark, paths, config.maintain, parallel=config.state.parallel)
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
