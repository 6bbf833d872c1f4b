"""``capture``: source → landing. Follow the log and read queued dumps."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json

import click

from dblake.config import Config
from dblake.ingest.capture.loop import Until
from dblake.ingest.capture.startup import limit_memory
from jobs.cli.frame import job_options, run_job, stop_requested
from pipelines.capture import run_capture


@click.command("capture")
@job_options
@click.option("--until-caught-up", is_flag=True,
              help="End once everything logged so far has landed, queued dumps included.")
@click.option("--seconds", type=click.FloatRange(min=0), help="End after this many seconds.")
@click.option("--accept-gap", is_flag=True,
              help="If the log can no longer be resumed, skip the gap: start a new incarnation and re-dump all tables.")
@click.option("--json", "as_json", is_flag=True, help="Print {batches, rows, bytes, seconds} as JSON.")
def capture(
    config: Config, until_caught_up: bool, seconds: float | None, accept_gap: bool, as_json: bool
) -> None:
    """Follow the database's log into landing and read queued dumps.

    Runs until SIGTERM unless bounded, and ends at the end of a transaction. A restart resumes after the last landed
    row. With progress in ZooKeeper it waits as a standby while another capture leads, and takes over; a bounded run
    exits 75 instead. --accept-gap has no effect if there is no gap.
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
