"""Source → landing: follows the log and carries out queued dumps."""

from __future__ import annotations

import json

import click

from dblake.capture.loop import Until
from dblake.capture.startup import limit_memory
from dblake.config import Config
from jobs.cli.frame import job_options, run_job, stop_requested
from pipelines.capture import run_capture


@click.command("capture")
@job_options
@click.option("--until-caught-up", is_flag=True, help="End once all there is now, queued dumps included, has landed.")
@click.option("--seconds", type=click.FloatRange(min=0), help="End after so many seconds.")
@click.option("--accept-gap", is_flag=True,
              help="If the log cannot be gone on with, begin a new incarnation behind it and dump all tables again.")
@click.option("--json", "as_json", is_flag=True, help="Print what was landed as one JSON object.")
def capture(
    config: Config, until_caught_up: bool, seconds: float | None, accept_gap: bool, as_json: bool
) -> None:
    """Follow the database's log into landing, and carry out queued dumps beside it.

    Runs on until SIGTERM unless told otherwise; ends at a transaction's end. Started again, it goes on exactly after
    the last row landed. Where progress is kept in ZooKeeper it stands by while another capture leads, and takes over;
    with --until-caught-up or --seconds it ends with 75 instead. --accept-gap changes nothing where there is no gap.
    """
    with stop_requested() as stop:
        landed = run_capture(config, Until(caught_up=until_caught_up, seconds=seconds), stop, accept_gap=accept_gap)
    facts = {
        "batches": landed.batches, "rows": landed.rows, "bytes": landed.bytes, "seconds": round(landed.seconds, 3),
    }
    click.echo(json.dumps(facts) if as_json else f"landed {landed.rows:,} rows in {landed.batches:,} batches")


if __name__ == "__main__":
    limit_memory()
    run_job(capture)
