"""Asks for dumps of tables while the log is followed, steers them, and shows how they stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dblake.capture.dump_task import Control
from dblake.capture.throttle import Throttle
from dblake.config import Config
from dblake.core.errors import UsageError
from jobs.cli.frame import job_options, run_job
from pipelines.dump import (
    Entry,
    dump_status,
    end_throttle,
    slow_down,
    start_all,
    start_tables,
    steer,
    wait_for,
)


@click.group("dump")
@job_options
def dump() -> None:
    """Dump tables while they are written; capture does the reading."""


@dump.command("start")
@job_options
@click.option("--all", "everything", is_flag=True, help="All captured tables; those without a primary key are listed.")
@click.option("--table", "tables", multiple=True, metavar="T", help="schema.table; may be repeated.")
@click.option("--keys", multiple=True, metavar="JSON", help="Only these rows: an array, one value or array per key.")
@click.option("--priority", type=int, metavar="N",
              help="Higher comes first, also before what is being read.  [default: 10 with --keys, else 0]")
@click.option("--wait", is_flag=True, help="Stay until it is finished.")
@click.option("--json", "as_json", is_flag=True, help="Print {id, tables, skipped}.")
def start(
    config: Config, everything: bool, tables: tuple[str, ...], keys: tuple[str, ...], priority: int | None, wait: bool,
    as_json: bool,
) -> None:
    """Queue a dump and print its id."""
    if everything == bool(tables) or (everything and keys):
        raise UsageError("say what to dump", next_step="give --all, or --table T, or --table T --keys JSON")
    if everything:
        queued = start_all(config, priority=priority)
    else:
        queued = start_tables(config, tables, keys, priority=priority)
    click.echo(json.dumps(asdict(queued)) if as_json else queued.id)
    for table in queued.skipped:
        click.echo(f"skipped: {table} has no primary key", err=True)
    if wait:
        with _shown() as show:
            wait_for(config, queued.id, show)


def _steering(control: Control, does: str) -> None:
    @dump.command(control.value if control is not Control.RUN else "resume", help=does)
    @job_options
    @click.argument("dump_id", metavar="[ID]", required=False)
    @click.option("--table", metavar="T", help="Only this table; else all of the dump, or of all dumps.")
    def command(config: Config, dump_id: str | None, table: str | None) -> None:
        applied = steer(config, control, dump_id, table)
        for entry in applied:
            click.echo(f"{entry['id']} {entry['table']} {entry['state']}")
        if not applied:
            click.echo("no unfinished dump", err=True)


_steering(Control.PAUSE, "Stop after the chunk being read, to go on later.")
_steering(Control.RUN, "Go on where it was paused.")
_steering(Control.CANCEL, "Give up; what was read stays.")


@dump.command("throttle")
@job_options
@click.option("--chunk-size", type=click.IntRange(min=1), metavar="N", help="Rows a chunk.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="S", help="Seconds between two chunks.")
@click.option("--share", type=click.FloatRange(min=0, min_open=True, max=1), metavar="F",
              help="How much of its time a reader may be at work, 0.25 for a quarter.")
@click.option("--max-latency", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="While writing a watermark takes longer, rest longer and longer.")
@click.option("--off", is_flag=True, help="Back to what the configuration says.")
def throttle(
    config: Config, chunk_size: int | None, delay: float | None, share: float | None, max_latency: float | None,
    off: bool,
) -> None:
    """Slow down or speed up all dumps of the source, also those under way."""
    given = Throttle(chunk_size, delay, share, max_latency)
    if off == (given != Throttle()):
        raise UsageError(
            "say how fast", next_step="give --chunk-size N, --delay S, --share F or --max-latency S, or --off"
        )
    if off:
        end_throttle(config)
        return
    now = slow_down(config, given)
    latency = "" if now.max_latency is None else f", latency at most {now.max_latency} s"
    click.echo(f"chunk size {now.chunk_size}, delay {now.delay} s, share {now.share}{latency}")


@dump.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print an array with one entry a table.")
def status(config: Config, as_json: bool) -> None:
    """How every dump stands."""
    entries = dump_status(config)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    table = Table("id", "table", "state", "chunks", "rows", "started", "finished", "error", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*(Text("" if value is None else f"{value:,}" if isinstance(value, int) else value)
                        for value in entry.values()))
    Console().print(table)


@contextmanager
def _shown() -> Iterator[Callable[[list[Entry]], None]]:
    """Progress on stderr: bars on a terminal, else a line each time a table's state changes."""
    if not sys.stderr.isatty():
        said: dict[str, str] = {}

        def say(entries: list[Entry]) -> None:
            for entry in entries:
                if said.get(entry["table"]) != entry["state"]:
                    said[entry["table"]] = entry["state"]
                    click.echo(f"{entry['table']}: {entry['state']}, {entry['rows']:,} rows", err=True)

        yield say
        return
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}", markup=False),
               TextColumn("{task.fields[state]}"), TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars: dict[str, TaskID] = {}

        def draw(entries: list[Entry]) -> None:
            for entry in entries:
                facts = {"state": entry["state"], "rows": entry["rows"]}
                if entry["table"] not in bars:
                    bars[entry["table"]] = progress.add_task(entry["table"], total=1, **facts)
                progress.update(bars[entry["table"]], completed=int(entry["finished_at"] is not None), **facts)

        yield draw


if __name__ == "__main__":
    run_job(dump)
