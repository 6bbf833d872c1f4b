"""How far each stage is and what to do next, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dblake.config import Config
from dblake.status.metrics import write_metrics
from jobs.cli.frame import job_options, run_job
from pipelines.status import read_status


@click.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also write the figures there, for node_exporter's textfile collector: a name in .prom.")
@click.option("--offline", is_flag=True, help="Do not ask the database how its log stands.")
def status(config: Config, as_json: bool, prometheus: Path | None, offline: bool) -> None:
    """Show how far landing, events and state are, the log, the dumps, and what needs somebody's attention."""
    document = read_status(config, ask_source=not offline)
    if prometheus:
        write_metrics(document, prometheus)
    if as_json:
        click.echo(json.dumps(document))
        return
    console = Console()
    console.print(_stages(document))
    if document["log"]:
        console.print(_log(document["log"]), soft_wrap=True)
    if document["dumps"]:
        console.print(_dumps(document))
    if document["check"]:
        console.print(_check(document["check"]), soft_wrap=True)
    for problem in document["problems"]:
        of = f" {problem['table']}:" if problem["table"] else ":"
        said = escape(f"{of} {problem['detail']}. Next: {problem['next']}")
        console.print(f"[red]{problem['code']}[/red]{said}", soft_wrap=True)
    if not document["problems"]:
        console.print("Nothing needs anybody.")


def _stages(document: dict[str, Any]) -> Table:
    table = Table("stage", "position", "seconds behind", "bytes behind", "transactions behind",
                  title=f"source {document['source']}")
    for name, stage in document["stages"].items():
        table.add_row(name, stage["position"] or "nothing yet", _number(stage["lag_seconds"]),
                      _number(stage["lag_bytes"]), _number(stage["lag_transactions"]))
    return table


def _log(log: dict[str, Any]) -> str:
    parts = [f"the database keeps {_number(log['kept'])} bytes of log"]
    if log["room"] is not None:
        parts.append(f"{_number(log['room'])} more may come before what has not landed is lost")
    if log["seconds"] is not None:
        parts.append(f"each for {_number(log['seconds'])} s")
    return "; ".join(parts)


def _check(check: dict[str, Any]) -> str:
    failed = len(check["failed"])
    held = f"{failed} of {_number(check['expectations'])} expectations failed" if failed else "all held"
    return f"checked at {check['checked_at']}: {held}"


def _dumps(document: dict[str, Any]) -> Table:
    table = Table("dump", "table", "state", "chunks", "rows", "of about", "rows a second", "seconds left")
    for dump in document["dumps"]:
        table.add_row(dump["id"], dump["table"], dump["state"], _number(dump["chunks"]), _number(dump["rows"]),
                      _number(dump["rows_expected"]), _number(dump["rows_per_second"]), _number(dump["seconds_left"]))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


if __name__ == "__main__":
    run_job(status)
