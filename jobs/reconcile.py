"""``reconcile``: landing → events, once (for schedulers) or on and on; or again from a batch on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.config import Config
from dblake.core.errors import UsageError
from dblake.lake.layout import Paths
from dblake.reconcile.stream import reconcile_once, reconcile_until
from dblake.redecode.ledger import Run
from dblake.redecode.run import decode_again
from dblake.spark.session import spark_session
from jobs.cli.frame import job_options, run_job, stop_requested

_WIDE, _SHOWN = 160, 50


@click.command("reconcile")
@job_options
@click.option("--once", "mode", flag_value="once", default=True, help="Take all that has landed, then end (default).")
@click.option("--continuous", "mode", flag_value="continuous", help="Go on until SIGTERM or Ctrl-C.")
@click.option("--from", "first", type=click.IntRange(min=1), metavar="BATCH",
              help="Decode landing again from this batch on, show what differs, and put it in place of what was there.")
@click.option("--json", "as_json", is_flag=True, help="With --from: print what differs as JSON.")
def reconcile(config: Config, mode: str, first: int | None, as_json: bool) -> None:
    """Turn what has landed into ordered events: each change and each dumped row once."""
    paths = Paths(config.warehouse, config.source.name)
    size = config.reconcile.max_bytes_per_trigger
    if first is not None:
        if mode != "once":
            raise UsageError("--from ends by itself", next_step="give it without --continuous")
        rounds = decode_again(spark_session("dblake reconcile"), paths, first, max_bytes_per_trigger=size)
        _tell(rounds, as_json)
        return
    if as_json:
        raise UsageError("--json tells what --from found", next_step="give it with --from BATCH")
    if mode == "once":
        done = reconcile_once(spark_session("dblake reconcile"), paths, max_bytes_per_trigger=size)
    else:
        with stop_requested() as stop:
            done = reconcile_until(
                stop, spark_session("dblake reconcile"), paths, every=config.reconcile.trigger_seconds,
                max_bytes_per_trigger=size,
            )
    click.echo(f"events reach batch {done}")


def _tell(rounds: Sequence[Run], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([run.facts() for run in rounds], indent=2))
        return
    console = Console()
    for run in rounds:
        (console if console.is_terminal else Console(width=_WIDE)).print(_table(run))
        if run.tables:
            click.echo(f"the next run of state builds anew: {', '.join(run.tables)}")


def _table(run: Run) -> Table:
    """What differs by batch, then what is the same."""
    differing = [line for line in run.lines if line.differs]
    table = Table(title=f"batches {run.first} to {run.last}, decoded again")
    for name in ("in", "batch", "table", "op"):
        table.add_column(name)
    for name in ("same", "different", "only old", "only new"):
        table.add_column(name, justify="right")
    for line in [*differing[:_SHOWN], *(line for line in run.lines if not line.differs)]:
        counts = (line.same, line.different, line.only_old, line.only_new)
        batch = "others" if line.batch is None else str(line.batch)
        table.add_row(line.of, batch, Text(line.table or ""), line.op or "", *(f"{count:,}" for count in counts))
    if len(differing) > _SHOWN:
        table.caption = f"and {len(differing) - _SHOWN:,} more that differ: --json has them all"
    return table


if __name__ == "__main__":
    run_job(reconcile)
