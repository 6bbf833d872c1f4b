"""``reconcile``: landing → events, once (for schedulers) or on and on."""

from __future__ import annotations

import click

from dblake.config import Config
from dblake.spark.session import spark_session
from pipelines.cli import job_options, run_job, stop_requested
from pipelines.paths import Paths
from pipelines.reconcile import reconcile_once, reconcile_until


@click.command("reconcile")
@job_options
@click.option("--once", "mode", flag_value="once", default=True, help="Take all that has landed, then end (default).")
@click.option("--continuous", "mode", flag_value="continuous", help="Go on until SIGTERM or Ctrl-C.")
def reconcile(config: Config, mode: str) -> None:
    """Turn what has landed into ordered events: each change and each dumped row once."""
    paths = Paths(config.warehouse, config.source.name)
    size = config.reconcile.max_bytes_per_trigger
    if mode == "once":
        done = reconcile_once(spark_session("dblake reconcile"), paths, max_bytes_per_trigger=size)
    else:
        with stop_requested() as stop:
            done = reconcile_until(
                stop, spark_session("dblake reconcile"), paths, every=config.reconcile.trigger_seconds,
                max_bytes_per_trigger=size,
            )
    click.echo(f"events reach batch {done}")


if __name__ == "__main__":
    run_job(reconcile)
