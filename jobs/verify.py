"""``verify``: compare state with the source while it is written, without locks, and repair what differs."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dblake.base.core.errors import UsageError
from dblake.config import Config
from dblake.operate.verification.outputs import OutputVerification
from jobs.cli.frame import job_options, run_job
from pipelines.verify import output_verification, queue_tables

_PIPE_WIDTH_CHARACTERS = 160
_COUNTS = ("chunks", "rows_compared", "rows_skipped", "lossy", "missing", "extra", "different", "repaired")
_OUTPUT_COUNTS = ("rows_compared", "missing", "extra", "different", "repaired", "remaining")


@click.command("verify")
@job_options
@click.option("--table", "tables", multiple=True, metavar="T",
              help="schema.table; may be repeated. Default: all tables with a primary key that are not suspended.")
@click.option("--sample", type=click.FloatRange(min=0, min_open=True, max=1), metavar="F",
              help="Read about this share of each table's key ranges; default: verify.sample.")
@click.option("--repair", is_flag=True,
              help="With --wait: dump the rows that differ, delete those that the source does not have, verify again.")
@click.option("--remove", is_flag=True,
              help="With --repair: delete all rows that the source does not have; without it at most the share "
                   "dump.max_removed of a table's rows.")
@click.option("--wait", is_flag=True,
              help="Wait for the result; exit 65 if differences remain. Needs capture, reconcile and state to run.")
@click.option("--output", metavar="NAME",
              help="Compare the target of this SQL output with state instead; --repair delivers wrong rows again.")
@click.option("--json", "as_json", is_flag=True,
              help="Print the result of --wait as an array with one object per table; else {id, tables, skipped}.")
def verify(
    config: Config, tables: tuple[str, ...], sample: float | None, repair: bool, remove: bool, wait: bool,
    output: str | None, as_json: bool,
) -> None:
    """Compare state with the source row by row, while it is written, and record the result.

    Capture reads the tables in chunks as a dump does. Without --wait, print the verification's id and return; the
    comparison then runs with the next state job.
    """
    if output is not None:
        if sample is not None or remove or wait:
            raise UsageError("--output with --sample, --remove or --wait", next_step="omit them: all rows are read now")
        _verify_output(output_verification(config, output, tables), repair=repair, as_json=as_json)
        return
    if repair and not wait:
        raise UsageError("--repair without --wait", next_step="add --wait, or omit --repair")
    if remove and not repair:
        raise UsageError("--remove without --repair", next_step="add --repair, or omit --remove")
    limit = None if remove else config.dump.max_removed
    verification, skipped = queue_tables(config, tables, sample=sample, repair=repair, max_removed=limit)
    for table, why in skipped.items():
        click.echo(f"skipped: {table} {why}", err=True)
    if not wait:
        queued = {"id": verification.id, "tables": list(verification.tables), "skipped": list(skipped)}
        click.echo(json.dumps(queued) if as_json else verification.id)
        return
    verification.wait(lambda text: click.echo(text, err=True))
    results = verification.results()
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        _print_results(verification.id, results)
    verification.require_equal()


def _verify_output(verification: OutputVerification, *, repair: bool, as_json: bool) -> None:
    results = verification.run(repair=repair)
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        _print_results(verification.id, results, _OUTPUT_COUNTS)
    verification.require_equal(results)


def _print_results(verification_id: str, results: list[dict[str, Any]], names: Sequence[str] = _COUNTS) -> None:
    table = Table(Column("table", no_wrap=True), *names, "position", title=f"verification {verification_id}")
    for result in results:
        counts = (f"{result[name]:,}" for name in names)
        table.add_row(Text(result["table"]), *counts, result["position"])
    (Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH_CHARACTERS)).print(table)


if __name__ == "__main__":
    run_job(verify)
