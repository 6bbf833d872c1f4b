"""``state``: events → state tables, once or continuously."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from dblake.base.core.errors import UsageError
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.operate.verification.run import compare_landed
from dblake.transform.state.pending import folded_batch
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.options import engine_option, exclusive_flags
from jobs.cli.progress import show_progress
from pipelines.iceberg import open_publisher

if TYPE_CHECKING:
    from dblake.transform.state.run import TableResult


@click.command("state")
@job_options
@engine_option
@exclusive_flags("mode", {
    "once": "Fold all pending events, then end (default).",
    "continuous": "Run until SIGTERM or Ctrl-C.",
}, default="once")
@click.option("--interval", type=click.FloatRange(min=0), metavar="SECONDS",
              help="With --continuous: pause between two steps; default: state.interval_seconds.")
def state(config: Config, mode: str, interval: float | None) -> None:
    """Fold events into one current row per key, in one state table per source table."""
    if mode == "once" and interval is not None:
        raise UsageError("--interval without --continuous", next_step="add --continuous, or omit --interval")
    paths, publisher = Paths(config.warehouse, config.source.name), open_publisher(config)
    if mode == "once" and (batch := folded_batch(paths)) is not None:
        compare_landed(paths)
        if publisher:
            publisher.publish_changed()
        click.echo(f"nothing to do: state has reached batch {batch}")
        return
    from dblake.transform.spark.session import session_of
    from dblake.transform.state.run import require_success, run_continuously, run_state

    session = session_of("dblake state", config.warehouse, config.spark.engine)
    fold = partial(run_state, session, paths, parallel=config.state.parallel,
                   batches_per_step=config.state.batches_per_step)
    with show_progress():
        if mode == "once":
            results = fold()
            print_tables(results)
            compare_landed(paths)
            try:
                if publisher:
                    publisher.publish_changed()
            finally:
                # A table that stays behind needs an operator; a catalog is tried again by the next run.
                require_success(results)
        else:
            with stop_requested() as stop, publisher.publishing() if publisher else nullcontext():
                pause = config.state.interval_seconds if interval is None else interval
                run_continuously(stop, paths, partial(_fold_and_compare, partial(fold, stop=stop), paths), pause)


def _fold_and_compare(fold: Callable[[], list[TableResult]], paths: Paths) -> list[TableResult]:
    results = fold()
    compare_landed(paths)
    return results


def print_tables(results: Sequence[TableResult]) -> None:
    """Print a line for each table that took its events."""
    for result in results:
        if result.error is None:
            click.echo(f"{result.table}: {result.events} events, up to batch {result.batch}")


if __name__ == "__main__":
    run_job(state)
