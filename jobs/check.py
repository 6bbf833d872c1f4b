"""``check``: are landing, ledger, events and state as they must be, and do the user's own suites hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.config import Config
from dblake.lake.layout import Paths
from dblake.quality.results import Outcome
from dblake.quality.run import Report, run_check
from dblake.quality.suite import Suite
from dblake.quality.user_suite import read_suites
from dblake.spark.session import spark_session
from dblake.sql.query import silence_spark
from jobs.cli.frame import job_options, run_job

_WIDE = 200

logger = logging.getLogger(__name__)


@click.command("check")
@job_options
@click.option("--all", "everything", is_flag=True, help="Look at everything, not only at what came since all passed.")
@click.option("--table", "tables", multiple=True, metavar="T",
              help="Only the state and the suites of this table; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of all results.")
def check(config: Config, everything: bool, tables: Sequence[str], as_json: bool) -> None:
    """Check what the jobs have made, and the suites of quality.suites; exit 65 if anything is not as it must be.

    Results stay in a Delta table, and pages for people beside it: <warehouse>/<source>/quality.
    """
    own = read_suites(config.quality.suites) if config.quality.suites else []
    spark = spark_session("dblake check")
    # What Spark says of a suite's fault may show values.
    silence_spark(spark)
    paths = Paths(config.warehouse, config.source.name)
    with _watched() as told:
        report = run_check(spark, paths, own, everything=everything, tables=tables, on_suite=told)
    if as_json:
        click.echo(json.dumps([_facts(outcome) for outcome in report.outcomes], indent=2))
    else:
        _print(report)
    report.require_success()


@contextmanager
def _watched() -> Iterator[Callable[[Suite], None]]:
    """What to call before each suite: it is shown where somebody looks, and else is a line of the log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda suite: logger.info("checking %s: %s", suite.table, suite.name)
        return
    with console.status("checking") as line:
        yield lambda suite: line.update(Text(f"checking {suite.table}: {suite.name}"))


def _facts(outcome: Outcome) -> dict[str, object]:
    return outcome.as_columns() | {"kwargs": json.loads(outcome.kwargs)}


def _print(report: Report) -> None:
    wrong = [outcome for outcome in report.outcomes if not outcome.success]
    if wrong:
        console = Console()
        (console if console.is_terminal else Console(width=_WIDE)).print(_table(wrong))
    elif report.outcomes:
        suites = {(outcome.suite, outcome.table) for outcome in report.outcomes}
        click.echo(f"all is as it must be: {len(report.outcomes)} expectations of {len(suites)} suites")
    else:
        click.echo("nothing has come since all was as it must be")
    if report.pages:
        click.echo(f"pages: {report.pages}")


def _table(wrong: Sequence[Outcome]) -> Table:
    page = Table("suite", "table", "expectation", "column", "wrong", "of", "what must hold")
    for outcome in wrong:
        # Text, because names may look like markup.
        page.add_row(*(Text(cell) for cell in (
            outcome.suite, outcome.table, outcome.expectation, outcome.column or "", _count(outcome.unexpected),
            _count(outcome.evaluated), outcome.fault or outcome.description,
        )))
    return page


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


if __name__ == "__main__":
    run_job(check)
