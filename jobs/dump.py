"""``dump``: queue dumps of tables, steer them, and list their progress. Capture reads the tables."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import click

from dblake.base.core.errors import UsageError
from dblake.base.core.progress import stage
from dblake.config import Config
from dblake.ingest.capture.dump_task import DumpControl, DumpState
from dblake.ingest.capture.dump_wait import wait_for_dump
from dblake.ingest.capture.throttle import Throttle
from dblake.ingest.imports.spec import FORMATS, ImportFiles
from jobs.cli.frame import job_options, run_job
from jobs.cli.progress import show_progress
from pipelines.dump import (
    Entry,
    estimate_rows,
    open_store,
    read_dumps,
    reset_throttle,
    set_throttle,
    start_all,
    start_import,
    start_tables,
    steer,
)


@click.group("dump")
@job_options
def dump() -> None:
    """Dump (backfill) tables while they are written. Capture does the reading."""


@dump.command("start")
@job_options
@click.option("--all", "everything", is_flag=True,
              help="All captured tables; tables without a primary key are listed and skipped.")
@click.option("--table", "tables", multiple=True, metavar="T", help="schema.table; may be repeated.")
@click.option("--keys", multiple=True, metavar="JSON",
              help="Only these rows: an array with one value or array per key.")
@click.option("--remove", is_flag=True,
              help="Delete all rows that the dump does not return; without it at most the share dump.max_removed.")
@click.option("--priority", type=int, metavar="N",
              help="Higher priorities preempt running dumps between chunks.  [default: 10 with --keys, else 0]")
@click.option("--wait", is_flag=True, help="Wait until the dump is finished.")
@click.option("--json", "as_json", is_flag=True, help="Print {id, tables, skipped}.")
def start(
    config: Config, everything: bool, tables: tuple[str, ...], keys: tuple[str, ...], remove: bool,
    priority: int | None, wait: bool, as_json: bool,
) -> None:
    """Queue a dump and print its id."""
    if everything == bool(tables) or (everything and keys):
        raise UsageError(
            "no tables to dump, or two selections", next_step="give --all, or --table T, or --table T --keys JSON"
        )
    if keys and remove:
        raise UsageError("a dump of --keys deletes nothing", next_step="omit --remove, or run verify --repair")
    if everything:
        queued = start_all(config, priority=priority, removes=remove)
    else:
        queued = start_tables(config, tables, keys, priority=priority, removes=remove)
    for table in queued.skipped:
        click.echo(f"skipped: {table} has no primary key", err=True)
    # The id is last: Airflow takes the last line of both streams as the task's result.
    click.echo(json.dumps(asdict(queued)) if as_json else queued.id)
    if wait:
        _wait(config, queued.id, None if keys else estimate_rows(config, queued))


@dump.command("import")
@job_options
@click.option("--table", required=True, metavar="T", help="schema.table.")
@click.option("--at", required=True, metavar="POSITION",
              help="Where the files were taken, as the server writes it: an LSN (0/16B3748), or FILE:OFFSET of the "
                   "binlog (mysql-bin.000042:1547).")
@click.option("--snapshot", metavar="TEXT", help="PostgreSQL: pg_current_snapshot() of the transaction that exported.")
@click.option("--format", "format_", required=True, type=click.Choice(FORMATS),
              help="pg_dump: plain text with COPY, or COPY's text; mysqldump: the .txt of --tab; csv: with a header.")
@click.option("--columns", metavar="A,B,…", help="Columns of files without names; default: the table's, in its order.")
@click.option("--null", default="", metavar="TEXT", help="csv: how NULL is written, unquoted.  [default: nothing]")
@click.option("--replace", is_flag=True, help="Import also if the table has its rows already, as of the position.")
@click.option("--remove", is_flag=True,
              help="Delete all earlier rows that the files lack; without it at most the share dump.max_removed.")
@click.option("--wait", is_flag=True, help="Wait until the import is finished.")
@click.option("--json", "as_json", is_flag=True, help="Print {id, tables, skipped}.")
@click.argument("files", nargs=-1, required=True)
def import_files(
    config: Config, table: str, at: str, snapshot: str | None, format_: str, columns: str | None, null: str,
    replace: bool, remove: bool, wait: bool, as_json: bool, files: tuple[str, ...],
) -> None:
    """Queue the initial load of a table from FILES that hold all its rows as of a position; print its id.

    Capture reads the files, paths or s3:// URLs, in place of the table. What was written after the position stays.
    """
    names = tuple(columns.split(",")) if columns else None
    queued, rows = start_import(
        config, table, ImportFiles(format_, files, at, snapshot, names, null), replaces=replace, removes=remove
    )
    click.echo(json.dumps(asdict(queued)) if as_json else queued.id)
    if wait:
        _wait(config, queued.id, rows)


def _wait(config: Config, dump_id: str, rows: int | None) -> None:
    try:
        with _progress(rows) as show:
            wait_for_dump(open_store(config), dump_id, show)
    except KeyboardInterrupt:
        click.echo(f"dump {dump_id} stays queued; dump cancel {dump_id} cancels it", err=True)
        raise


def _add_steering(control: DumpControl, help_text: str) -> None:
    @dump.command(control.value if control is not DumpControl.RUN else "resume", help=help_text)
    @job_options
    @click.argument("dump_id", metavar="[ID]", required=False)
    @click.option("--table", metavar="T", help="Only this table; default: all tables of the dump, or of all dumps.")
    def command(config: Config, dump_id: str | None, table: str | None) -> None:
        applied = steer(config, control, dump_id, table)
        for entry in applied:
            click.echo(f"{entry['id']} {entry['table']} {entry['state']}")
        if not applied:
            click.echo("no unfinished dump", err=True)


_add_steering(DumpControl.PAUSE, "Pause dumps after the current chunk.")
_add_steering(DumpControl.RUN, "Resume paused dumps.")
_add_steering(DumpControl.CANCEL, "Cancel dumps; rows already read remain. Dismiss failed ones that are named.")


@dump.command("throttle")
@job_options
@click.option("--chunk-size", type=click.IntRange(min=1), metavar="N", help="Rows per chunk.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="S", help="Seconds between two chunks.")
@click.option("--share", type=click.FloatRange(min=0, min_open=True, max=1), metavar="F",
              help="Share of its time that a reader may work, 0.25 for a quarter.")
@click.option("--max-latency", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="Back off while writing a watermark takes longer than this.")
@click.option("--off", is_flag=True, help="Return to the configuration's limits.")
def throttle(
    config: Config, chunk_size: int | None, delay: float | None, share: float | None, max_latency: float | None,
    off: bool,
) -> None:
    """Change the speed of all dumps of the source, running ones included."""
    changes = Throttle(chunk_size, delay, share, max_latency)
    if off == (changes != Throttle()):
        raise UsageError(
            "no limit to set, or --off beside one",
            next_step="give --chunk-size N, --delay S, --share F or --max-latency S, or --off",
        )
    limits = reset_throttle(config) if off else set_throttle(config, changes)
    latency = "" if limits.max_latency is None else f", latency at most {limits.max_latency} s"
    click.echo(f"chunk size {limits.chunk_size}, delay {limits.delay} s, share {limits.share}{latency}")


@dump.command("status")
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print an array with one entry per table.")
def status(config: Config, as_json: bool) -> None:
    """List the progress of every dump."""
    entries = read_dumps(config)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for line in _describe_dumps(entries):
        click.echo(line)


def _describe_dumps(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield two lines per table: no id and no name is cut, whatever the terminal's width."""
    for entry in entries:
        yield f"{entry['id']} {entry['table']}"
        facts = [f"{entry['state']}: {entry['rows']:,} rows in {entry['chunks']:,} chunks"]
        facts += [f"{name} {at}" for name in ("started", "finished") if (at := entry[f"{name}_at"])]
        yield f"  {', '.join(facts)}"
        if entry["error"]:
            yield f"  {entry['error']}"
    if not entries:
        yield "no dumps"


@contextmanager
def _progress(estimated_rows: int | None) -> Iterator[Callable[[list[Entry]], None]]:
    """Yield a callback that shows rows, rate and time left, and prints a line to stderr when a table changes state."""
    printed: dict[str, str] = {}

    def show(entries: list[Entry]) -> None:
        rows = sum(entry["rows"] for entry in entries)
        running = [entry["table"] for entry in entries if entry["state"] == DumpState.RUNNING]
        work.advance(rows - work.done, rows - work.rows, note=", ".join(running[:1]))
        for entry in entries:
            if printed.get(entry["table"]) != entry["state"]:
                printed[entry["table"]] = entry["state"]
                click.echo(f"{entry['table']}: {entry['state']}, {entry['rows']:,} rows", err=True)

    with show_progress(), stage("dump", "row", estimated_rows) as work:
        yield show


if __name__ == "__main__":
    run_job(dump)
