"""``subscribe``: deliver changes to an output, or to stdout as JSON lines, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
import sys
from pathlib import Path

import click

from dblake.base.core.errors import ConfigError, ExitCode, UsageError
from dblake.config import Config
from dblake.serve.outputs.target import STDOUT
from jobs.cli.frame import job_options, run_job, stop_requested
from jobs.cli.parts import output_parts, run_parts
from pipelines.subscribe import run_subscribe


@click.command("subscribe")
@job_options
@click.option("--output", "name", metavar="NAME|-",
              help="An output of the configuration; - writes native JSON to stdout.")
@click.option("--all", "runs_all", is_flag=True,
              help="Run every output of the configuration, each as a supervised process of its own.")
@click.option("--from", "start", metavar="bootstrap|POINT",
              help="Begin with a bootstrap from state, now, at a position (1/4711) or at a commit time; default: the "
                   "checkpoint, else the output's `start`.")
@click.option("--table", "tables", multiple=True, metavar="GLOB",
              help="Tables to deliver, globs on schema.table; may be repeated. Default: the output's `tables`.")
@click.option("--until-caught-up", is_flag=True, help="End once everything in events by now is delivered.")
@click.option("--checkpoint", metavar="URL",
              help="Where the checkpoint is kept: file:PATH or zookeeper://host:port/path. Default: beside `progress`; "
                   "for - none.")
@click.option("--prometheus", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also write metrics for node_exporter's textfile collector; the file name must end in .prom.")
@click.option("--json", "as_json", is_flag=True,
              help="At the end, print {events, transactions, retries, dead_letters, position}; to stderr for -.")
def subscribe(
    config: Config, name: str | None, runs_all: bool, start: str | None, tables: tuple[str, ...], until_caught_up: bool,
    checkpoint: str | None, prometheus: Path | None, as_json: bool,
) -> int:
    """Deliver changes in commit order, whole transactions, at least once.

    Begins with a bootstrap: all rows of state as of one position, then every change after it. Runs until SIGTERM unless
    bounded, and continues from its checkpoint when it is started again. While another process holds a checkpoint in
    ZooKeeper it waits as a standby; otherwise, or if bounded, it exits 75. docs/consumers.md is the contract.
    Processes of an output with `group` share its keys, without --from and --checkpoint: docs/outputs.md.

    --all supervises a process per output, as `up` does. One that ends with 75, or is killed, starts again after a pause
    of up to 60 s. One that fails for good is logged and does not stop the others. With --until-caught-up none starts
    again, and the command ends with the worst exit code.
    """
    if (name is None) != runs_all:
        raise UsageError("give either --output or --all", next_step="name an output, - for stdout, or --all")
    if runs_all or name is None:
        if start or tables or checkpoint or prometheus or as_json:
            raise UsageError(
                "--all takes no option but --until-caught-up, because the others concern one output",
                next_step="leave them out, or run subscribe --output NAME; status --json and --prometheus show all",
            )
        if not config.outputs:
            raise ConfigError("there are no outputs", next_step="add one under `outputs`: docs/outputs.md")
        options = ["--until-caught-up"] if until_caught_up else []
        return run_parts(output_parts(config.outputs, *options, is_bounded=until_caught_up))
    with stop_requested() as stop:
        counts = run_subscribe(
            config, name, stop, start=start, tables=tables, until_caught_up=until_caught_up, checkpoint=checkpoint,
            metrics=prometheus,
        )
    facts = {
        "events": counts.events, "transactions": counts.transactions, "retries": counts.retries,
        "dead_letters": counts.dead_letters, "position": counts.position and str(counts.position),
    }
    if as_json:
        click.echo(json.dumps(facts), file=sys.stderr if name == STDOUT else sys.stdout)
    return ExitCode.DONE


if __name__ == "__main__":
    run_job(subscribe)
