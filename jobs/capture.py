"""``capture``: source → landing. Follow the log and read queued dumps; limit and pause that at run time."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json

import click

from dblake.base.core.errors import UsageError
from dblake.config import Config
from dblake.ingest.capture.log_limits import (
    MAX_MB_PER_SECOND,
    MAX_PAUSE_MINUTES,
    LogLimits,
    pause_log,
    resume_log,
    throttle_log,
)
from dblake.ingest.capture.loop import Until
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.capture.startup import limit_memory
from jobs.cli.frame import job_options, run_job, stop_requested
from pipelines.capture import run_capture


@click.group("capture", invoke_without_command=True)
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


@capture.command("pause")
@job_options
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True, max=MAX_PAUSE_MINUTES), default=60.0,
              show_default=True, help="Resume after so many minutes.")
def pause(config: Config, minutes: float) -> None:
    """Stop reading the log and tables; `status` shows how much log the database retains."""
    _print_limits(pause_log(open_progress(config.progress, config.source.name), minutes))


@capture.command("resume")
@job_options
def resume(config: Config) -> None:
    """End a pause, before it expires."""
    _print_limits(resume_log(open_progress(config.progress, config.source.name)))


@capture.command("throttle")
@job_options
@click.option("--mb-per-second", type=click.FloatRange(min=0, min_open=True, max=MAX_MB_PER_SECOND), metavar="N",
              help="Megabytes of log a second, as it lands before compression.")
@click.option("--off", is_flag=True, help="Read the log as fast as it can land.")
def throttle(config: Config, mb_per_second: float | None, off: bool) -> None:
    """Limit how fast the log is read, by a running and each later capture."""
    if off == (mb_per_second is not None):
        raise UsageError("no limit, or --off beside one", next_step="give --mb-per-second N, or --off")
    _print_limits(throttle_log(open_progress(config.progress, config.source.name), mb_per_second))


def _print_limits(limits: LogLimits) -> None:
    pause = f"paused until {limits.paused_until}" if limits.paused_until else "not paused"
    rate = f"at most {limits.mb_per_second} MB/s" if limits.mb_per_second else "no limit"
    click.echo(f"log: {pause}, {rate}")


if __name__ == "__main__":
    limit_memory()
    run_job(capture)
