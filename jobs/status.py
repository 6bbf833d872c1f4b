"""``status``: report each stage's lag, the database's log, dumps and open problems, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

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
              help="Also write metrics for node_exporter's textfile collector; the file name must end in .prom.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
def status(config: Config, as_json: bool, prometheus: Path | None, offline: bool) -> None:
    """Report the lag of landing, events and state, the database's log, dumps and open problems."""
    document = read_status(config, ask_source=not offline)
    if prometheus:
        write_metrics(document, prometheus)
    if as_json:
        click.echo(json.dumps(document))
        return
    console = Console()
    console.print(_stage_table(document))
    if document["log"]:
        console.print(_describe_log(document["log"]), soft_wrap=True)
    if document["dumps"]:
        console.print(_dump_table(document))
    if document["check"]:
        console.print(_describe_check(document["check"]), soft_wrap=True)
    if document["verifications"]:
        console.print(_verification_table(document))
    for problem in document["problems"]:
        table = f" {problem['table']}:" if problem["table"] else ":"
        detail = escape(f"{table} {problem['detail']}. Next: {problem['next']}")
        console.print(f"[red]{problem['code']}[/red]{detail}", soft_wrap=True)
    if not document["problems"]:
        console.print("no open problems")


def _stage_table(document: dict[str, Any]) -> Table:
    table = Table("stage", "position", "lag seconds", "lag bytes", "lag transactions",
                  title=f"source {document['source']}")
    for name, stage in document["stages"].items():
        table.add_row(name, stage["position"] or "empty", _format_number(stage["lag_seconds"]),
                      _format_number(stage["lag_bytes"]), _format_number(stage["lag_transactions"]))
    return table


def _describe_log(log: dict[str, Any]) -> str:
    parts = [f"the database retains {_format_number(log['kept'])} bytes of log"]
    if log["room"] is not None:
        parts.append(f"{_format_number(log['room'])} more bytes may be written before log that has not landed is lost")
    if log["seconds"] is not None:
        parts.append(f"retention {_format_number(log['seconds'])} s")
    return "; ".join(parts)


def _describe_check(check: dict[str, Any]) -> str:
    failed, total = len(check["failed"]), _format_number(check["expectations"])
    result = f"{failed} of {total} expectations failed" if failed else f"all {total} expectations passed"
    return f"last check at {check['checked_at']}: {result}"


def _dump_table(document: dict[str, Any]) -> Table:
    table = Table("dump", "table", "state", "chunks", "rows", "rows expected", "rows per second", "seconds left")
    for dump in document["dumps"]:
        table.add_row(dump["id"], dump["table"], dump["state"], _format_number(dump["chunks"]),
                      _format_number(dump["rows"]), _format_number(dump["rows_expected"]),
                      _format_number(dump["rows_per_second"]), _format_number(dump["seconds_left"]))
    return table


def _verification_table(document: dict[str, Any]) -> Table:
    table = Table("table", "verified at", "coverage", "differences")
    for entry in document["verifications"]:
        coverage = f"{entry['coverage']:.1%}{' of a sample' if entry['sampled'] else ''}"
        table.add_row(escape(entry["table"]), entry["verified_at"], coverage, _format_number(entry["differences"]))
    return table


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


if __name__ == "__main__":
    run_job(status)
