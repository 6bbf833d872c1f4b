"""``state``: events → state tables, once or continuously."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from dblake.config import Config
from dblake.core.errors import StateError
from dblake.lake.layout import Paths
from dblake.spark.session import spark_session
from dblake.state.run import TableResult, run_continuously, run_state
from dblake.verification.run import compare_landed
from jobs.cli.frame import job_options, run_job, stop_requested


@click.command("state")
@job_options
@click.option("--once", "mode", flag_value="once", default=True, help="Fold all pending events, then end (default).")
@click.option("--continuous", "mode", flag_value="continuous", help="Run until SIGTERM or Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0), metavar="SECONDS",
              help="With --continuous: pause between two steps; default: state.interval_seconds.")
def state(config: Config, mode: str, interval: float | None) -> None:
    """Fold events into one current row per key, in one state table per source table."""
    paths = Paths(config.warehouse, config.source.name)
    spark = spark_session("dblake state", config.warehouse)
    fold = partial(run_state, spark, paths, parallel=config.state.parallel,
                   batches_per_step=config.state.batches_per_step)
    if mode == "once":
        results = fold()
        for result in results:
            if result.error is None:
                click.echo(f"{result.table}: {result.events} events, up to batch {result.batch}")
        compare_landed(paths)
        _raise_failures(results)
    else:
        with stop_requested() as stop:
            pause = config.state.interval_seconds if interval is None else interval
            run_continuously(stop, paths, partial(_fold_and_compare, partial(fold, stop=stop), paths), pause)


def _fold_and_compare(fold: Callable[[], list[TableResult]], paths: Paths) -> list[TableResult]:
    results = fold()
    compare_landed(paths)
    return results


def _raise_failures(results: list[TableResult]) -> None:
    errors = [r.error for r in results if r.error]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise StateError(f"{len(errors)} of {len(results)} tables are behind: {'; '.join(e.what for e in errors)}",
                         next_step=errors[0].next_step)


if __name__ == "__main__":
    run_job(state)
