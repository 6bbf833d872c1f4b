"""``reconcile``: landing → events, once or continuously; with ``--from``, decode landing again."""

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

from dblake.base.core.errors import CopyDiffers, UsageError
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import holds_little
from dblake.config import Config
from dblake.transform.reconcile.pending import reconciled_batch
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.options import engine_option, exclusive_flags
from jobs.cli.progress import show_progress

if TYPE_CHECKING:
    from dblake.transform.redecode.ledger import RedecodeRun

_PIPE_WIDTH_CHARACTERS = 160
_MAX_DIFFERENCES = 50


@click.command("reconcile")
@job_options
@engine_option
@exclusive_flags("mode", {
    "once": "Process all landed batches, then end (default).",
    "continuous": "Run until SIGTERM or Ctrl-C.",
}, default="once")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="BATCH",
              help="Decode landing again from this batch, show the differences and replace the old events.")
@click.option("--compare", is_flag=True,
              help="With --from: show the differences only and replace nothing; exit 65 if there are any.")
@click.option("--json", "as_json", is_flag=True, help="With --from: print the differences as JSON.")
def reconcile(config: Config, mode: str, first: int | None, compare: bool, as_json: bool) -> None:
    """Turn landed batches into ordered events, one per change and per dumped row that no change supersedes."""
    paths = Paths(config.warehouse, config.source.name)
    if first is not None:
        if mode != "once":
            raise UsageError("--from cannot run continuously", next_step="omit --continuous")
        _redecode(config, paths, first, compare, as_json)
        return
    if as_json or compare:
        option = "--json" if as_json else "--compare"
        raise UsageError(f"{option} requires --from BATCH", next_step=f"add --from BATCH or omit {option}")
    if mode == "once" and (batch := reconciled_batch(paths)) is not None:
        click.echo(f"nothing to do: events reach batch {batch}")
        return
    from dblake.transform.reconcile.stream import reconcile_once, reconcile_until
    from dblake.transform.spark.session import session_of

    spark = session_of("dblake reconcile", config.warehouse, config.spark.engine,
                       is_short=lambda: mode == "once" and holds_little(paths))
    size = config.reconcile.max_bytes_per_trigger
    with show_progress():
        if mode == "once":
            batch = reconcile_once(spark, paths, max_bytes_per_trigger=size)
        else:
            with stop_requested() as stop:
                batch = reconcile_until(
                    stop, spark, paths, every=config.reconcile.trigger_seconds, max_bytes_per_trigger=size,
                )
    click.echo(f"events reach batch {batch}")


def _redecode(config: Config, paths: Paths, first: int, compare: bool, as_json: bool) -> None:
    from dblake.transform.redecode.run import compare_redecoded, redecode
    from dblake.transform.spark.session import session_of

    size = config.reconcile.max_bytes_per_trigger
    with show_progress():
        spark = session_of("dblake reconcile", config.warehouse, config.spark.engine)
        if not compare:
            runs = redecode(spark, paths, first, max_bytes_per_trigger=size)
        else:
            compared = compare_redecoded(spark, paths, first, max_bytes_per_trigger=size)
    if compare:
        _compare(compared, as_json)
    else:
        _print_runs(runs, as_json)


def _compare(run: RedecodeRun, as_json: bool) -> None:
    """Print a comparison. Raises CopyDiffers if something differs."""
    if as_json:
        click.echo(json.dumps([run.as_json()], indent=2))
    else:
        _print_table(run)
    if any(line.differs for line in run.lines):
        raise CopyDiffers(
            f"batches {run.first} to {run.last} decode to other rows than the tables have; nothing was replaced",
            next_step=f"run reconcile --from {run.first} to replace them",
        )


def _print_runs(runs: Sequence[RedecodeRun], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([run.as_json() for run in runs], indent=2))
        return
    for run in runs:
        _print_table(run)
        if run.tables:
            click.echo(f"the next run of state rebuilds: {', '.join(run.tables)}")


def _print_table(run: RedecodeRun) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=_PIPE_WIDTH_CHARACTERS)).print(_difference_table(run))


def _difference_table(run: RedecodeRun) -> Table:
    """Return the counts of one run: batches that differ first, then those that are the same."""
    differing = [line for line in run.lines if line.differs]
    table = Table(title=f"batches {run.first} to {run.last}, decoded again")
    for name in ("in", "batch", "table", "op"):
        table.add_column(name)
    for name in ("same", "different", "only old", "only new"):
        table.add_column(name, justify="right")
    for line in [*differing[:_MAX_DIFFERENCES], *(line for line in run.lines if not line.differs)]:
        counts = (line.same, line.different, line.only_old, line.only_new)
        batch = "others" if line.batch is None else str(line.batch)
        table.add_row(line.of, batch, Text(line.table or ""), line.op or "", *(f"{count:,}" for count in counts))
    if len(differing) > _MAX_DIFFERENCES:
        table.caption = f"and {len(differing) - _MAX_DIFFERENCES:,} more differences; --json prints all"
    return table


if __name__ == "__main__":
    run_job(reconcile)
