"""``maintain``: compact, expire and vacuum all tables of a source."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import click
from rich.console import Console
from rich.table import Table

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import holds_little
from dblake.config import Config
from dblake.ingest.capture.dump_queue import first_batch_of_imports
from dblake.operate.maintenance.run import MaintenanceResult
from dblake.operate.maintenance.run import maintain as run_maintenance
from dblake.transform.spark.session import session_of
from jobs.cli.frame import job_options, run_job
from jobs.cli.options import engine_option
from jobs.cli.progress import show_progress
from pipelines.dump import open_store
from pipelines.iceberg import open_publisher


@click.command("maintain")
@job_options
@engine_option
@click.option("--json", "as_json", is_flag=True, help="Print the result of each table as a JSON array.")
def maintain(config: Config, as_json: bool) -> None:
    """Compact small files, delete expired rows and vacuum old files. Safe beside all other jobs; run it hourly."""
    paths = Paths(config.warehouse, config.source.name)
    publisher = open_publisher(config)
    with show_progress():
        results = run_maintenance(
            session_of("dblake maintain", config.warehouse, config.spark.engine, is_short=lambda: holds_little(paths)),
            paths, config.maintain, parallel=config.state.parallel,
            first_needed=partial(first_needed, config),
            before_vacuum=publisher.prepare_vacuum if publisher else None,
        )
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
    elif any(result.has_changed for result in results):
        print_maintained(results)
    else:
        click.echo(f"nothing to do: {len(results)} tables need no maintenance")


def first_needed(config: Config) -> int | None:
    """Return the oldest landing batch that an unfinished import needs; None without one."""
    return first_batch_of_imports(open_store(config))


def print_maintained(results: Sequence[MaintenanceResult]) -> None:
    """Print a line for each table."""
    table = Table("table", "files before", "files after", "rows deleted", "old files")
    for result in results:
        table.add_row(result.table, f"{result.files_before:,}", f"{result.files_after:,}", f"{result.rows_deleted:,}",
                      "removed" if result.vacuumed else "")
    Console().print(table)


if __name__ == "__main__":
    run_job(maintain)
