"""``check``: validate the invariants of landing, ledger, events and state, and the user's own suites."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import holds_little
from dblake.config import Config
from dblake.operate.quality.pending import has_unchecked_data
from jobs.cli.frame import job_options, run_job
from jobs.cli.options import engine_option
from jobs.cli.progress import show_progress

if TYPE_CHECKING:
    from dblake.operate.quality.report import QualityReport
    from dblake.operate.quality.results import ExpectationResult

_PIPE_WIDTH_CHARACTERS = 200
NOTHING_NEW = "no new data since the last successful check"


@click.command("check")
@job_options
@engine_option
@click.option("--all", "everything", is_flag=True,
              help="Check all rows, not only those added since the last successful check.")
@click.option("--table", "tables", multiple=True, metavar="T",
              help="Check only this table's state and own suites; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print all results as a JSON array.")
def check(config: Config, everything: bool, tables: Sequence[str], as_json: bool) -> None:
    """Validate our tables' invariants and the suites of quality.suites; exit 65 if an expectation fails.

    Writes the results to a Delta table and to HTML pages in <warehouse>/<source>/quality.
    """
    paths = Paths(config.warehouse, config.source.name)
    if not (everything or tables or config.quality.suites or has_unchecked_data(paths)):
        click.echo("[]" if as_json else NOTHING_NEW)
        return
    from dblake.operate.quality.run import run_check
    from dblake.operate.quality.user_suite import read_suites
    from dblake.serve.sql.query import silence_spark
    from dblake.transform.spark.session import session_of

    own = read_suites(config.quality.suites) if config.quality.suites else []
    with show_progress():
        spark = session_of("dblake check", config.warehouse, config.spark.engine, is_short=lambda: holds_little(paths))
        # Spark's own report of a suite's fault may show row values.
        silence_spark(spark())
        report = run_check(spark, paths, own, everything=everything, tables=tables)
    if as_json:
        click.echo(json.dumps([_to_json(outcome) for outcome in report.outcomes], indent=2))
    else:
        print_report(report)
    report.require_success()


def _to_json(outcome: ExpectationResult) -> dict[str, object]:
    return outcome.as_columns() | {"kwargs": json.loads(outcome.kwargs)}


def print_report(report: QualityReport) -> None:
    """Print the failed expectations, or how many passed."""
    failures = [outcome for outcome in report.outcomes if not outcome.success]
    if failures:
        console = Console()
        (console if console.is_terminal else Console(width=_PIPE_WIDTH_CHARACTERS)).print(_failure_table(failures))
    elif report.outcomes:
        suites = {(outcome.suite, outcome.table) for outcome in report.outcomes}
        click.echo(f"all {len(report.outcomes)} expectations in {len(suites)} suites passed")
    else:
        click.echo(NOTHING_NEW)
    if report.pages:
        click.echo(f"pages: {report.pages}")


def _failure_table(failures: Sequence[ExpectationResult]) -> Table:
    table = Table("suite", "table", "expectation", "column", "failed rows", "of", "rule")
    for outcome in failures:
        # Text, because names may look like markup.
        table.add_row(*(Text(cell) for cell in (
            outcome.suite, outcome.table, outcome.expectation, outcome.column or "", _format_count(outcome.unexpected),
            _format_count(outcome.evaluated), outcome.fault or outcome.description,
        )))
    return table


def _format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


if __name__ == "__main__":
    run_job(check)
