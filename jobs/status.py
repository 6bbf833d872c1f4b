"""How far each stage is and what to do next, without a JVM."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from dblake.config import Config
from pipelines.cli import job_options, run_job
from pipelines.status import read_status


@click.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(config: Config, as_json: bool) -> None:
    """Show how far landing, events and state are, the dumps, and what needs somebody's attention."""
    document = read_status(config)
    if as_json:
        click.echo(json.dumps(document))
        return
    console = Console()
    stages = Table("stage", "position", "seconds behind now", title=f"source {document['source']}")
    for name, stage in document["stages"].items():
        lag = stage["lag_seconds"]
        stages.add_row(name, stage["position"] or "nothing yet", "" if lag is None else f"{lag:,.1f}")
    console.print(stages)
    if document["dumps"]:
        dumps = Table("dump", "table",  "state", "chunks", "rows")
        for dump in document["dumps"]:
            dumps.add_row(dump["id"], dump["table"], dump["state"], f"{dump['chunks']:,}", f"{dump['rows']:,}")
        console.print(dumps)
    for problem in document["problems"]:
        of = f" {problem['table']}:" if problem["table"] else ":"
        console.print(f"[red]{problem['code']}[/red]{of} {problem['detail']}. Next: {problem['next']}", soft_wrap=True)


if __name__ == "__main__":
    run_job(status)
