"""``run``: reconcile, state and, when due, check and maintain, in one process and one Spark session."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from dataclasses import asdict
from functools import partial

import click

from dblake.base.core.errors import UsageError
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import holds_little
from dblake.config import Config
from dblake.ingest.capture.lease import open_lease
from dblake.operate.cycle.run import JOB, Cycle, CycleResult
from dblake.transform.spark.session import session_of
from jobs.check import print_report
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.options import engine_option, exclusive_flags
from jobs.cli.progress import show_progress
from jobs.maintain import first_needed, print_maintained
from jobs.state import print_tables
from pipelines.iceberg import open_publisher


@click.command("run")
@job_options
@engine_option
@exclusive_flags("mode", {
    "once": "Process all that has landed, then end (default).",
    "continuous": "Run until SIGTERM or Ctrl-C.",
}, default="once")
@click.option("--check", type=click.Choice(["due", "always", "never"]), default="due", show_default=True,
              help="Check what is new: due by run.check_seconds, in every run, or never.")
@click.option("--maintain", type=click.Choice(["due", "always", "never"]), default="due", show_default=True,
              help="Maintain all tables: due by run.maintain_seconds, in every run, or never.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print {batch, steps, tables, check, maintained}.")
def run(config: Config, mode: str, check: str, maintain: str, as_json: bool) -> None:
    """Bring everything right of landing up to date: reconcile, state and, when due, check and maintain.

    The steps and exit codes are those of the jobs with these names. Without new data it starts no JVM. --continuous
    begins as soon as capture has landed something; there a failed check is logged, and maintenance waits until a check
    passes. With progress in ZooKeeper it waits as a standby while another continuous run leads, and takes over; with
    progress in files it exits 75.
    """
    if as_json and mode == "continuous":
        raise UsageError("--json with --continuous", next_step="omit one of them; status --json shows progress")
    due = {"check_seconds": check, "maintain_seconds": maintain}
    changes = {key: None if choice == "never" else 0.0 for key, choice in due.items() if choice != "due"}
    config = config.model_copy(update={"run": config.run.model_copy(update=changes)})
    paths = Paths(config.warehouse, config.source.name)
    session = session_of("dblake run", config.warehouse, config.spark.engine,
                         is_short=lambda: mode == "once" and holds_little(paths))
    cycle = Cycle(config, session, partial(first_needed, config), open_publisher(config))
    with show_progress():
        if mode == "continuous":
            source = config.source.name
            with (
                stop_requested() as stop,
                open_lease(config.progress, source, standby=True, stop=stop, job=JOB) as lease,
            ):
                if stop.is_set():  # during standby
                    return
                batch = cycle.run_until(stop, lease)
            click.echo(f"events reach batch {batch}")
            return
        result = CycleResult()
        try:
            cycle.run_once(result)
        finally:
            # What was done before an error.
            _print_result(result, as_json)


def _print_result(result: CycleResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({
            "batch": result.batch, "steps": result.steps,
            "tables": [{"table": t.table, "events": t.events, "batch": t.batch} for t in result.tables if not t.error],
            "check": None if result.report is None else {
                "expectations": len(result.report.outcomes),
                "failed": sum(not outcome.success for outcome in result.report.outcomes),
            },
            "maintained": [asdict(each) for each in result.maintained],
        }))
        return
    if not result.steps:
        click.echo(f"nothing to do: events and state have reached batch {result.batch}")
        return
    click.echo(f"events reach batch {result.batch}")
    print_tables(result.tables)
    if result.report is not None:
        print_report(result.report)
    if result.maintained:
        print_maintained(result.maintained)


if __name__ == "__main__":
    run_job(run)
