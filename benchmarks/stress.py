"""The long form of the stress oracle: minutes of writes, dumps and kills on each database, reported as figures.

With ``--checks`` it runs ``check`` repeatedly beside all running jobs instead; no run may report a problem. With
``--operations`` an operator does random things to the live system instead: after each, every table equals the source or
is named by ``status``. With ``--outputs`` several processes of each output start at once and are killed; the target
equals the events in the end.

``./spark-submit.sh stress`` runs it on its own servers, in a temporary folder. It exits with 70 if a change is missing,
duplicated or out of order, or if state differs from the source; figures are printed for correct runs only. A round of
operations that fails exits with 65 at the end.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from dblake.base.core.errors import ExitCode
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.transform.spark.session import spark_session
from jobs.cli.frame import run_job, verbose_option
from tests.support.clean import run_checks_under_load
from tests.support.mysql import MysqlServer
from tests.support.operations.rounds import run_rounds, tally
from tests.support.rig import PACE, rig_at
from tests.support.second_subscribers import stress_outputs
from tests.support.stress import Figures, Stress

Kind = Literal["postgres", "mariadb", "mysql"]

_JOBS = ("reconcile", "state")
_PAGE = 120


def server(kind: Kind, folder: Path) -> EmbeddedPostgres | MysqlServer:
    """Return an own server, not started."""
    return EmbeddedPostgres(folder / "server") if kind == "postgres" else MysqlServer(kind, folder / "server")


def stress_on(kind: Kind, seconds: float, kill_every: float, seed: int) -> Figures:
    """Run the oracle; return its figures. Raises AssertionError if events or state differ from the writes."""
    with tempfile.TemporaryDirectory(prefix="dblake-stress-") as name:
        folder = Path(name)
        with server(kind, folder) as database, rig_at(database, folder, **PACE) as rig:
            stress = Stress(rig, seed=seed, seconds=seconds, kill_every=kill_every, jobs=_JOBS)
            elapsed, writers = stress.run()
            rig.verify_tables()
            return stress.figures(elapsed, writers)


def checks_on(kind: Kind, checks: int, kill_every: float, seed: int) -> dict[str, Any]:
    """Run so many checks while jobs run and are killed. Raises AssertionError for a problem that one reports."""
    with tempfile.TemporaryDirectory(prefix="dblake-stress-") as name:
        folder = Path(name)
        with server(kind, folder) as database, rig_at(database, folder, **PACE) as rig:
            spark = spark_session("stress")

            def log(line: str) -> None:
                click.echo(f"{time.strftime('%H:%M:%S')} {kind}: {line}", err=True)

            return run_checks_under_load(rig, spark, checks, seed=seed, kill_every=kill_every, on_run=log).facts()


def operate_on(kind: Kind, rounds: int, seed: int, only: tuple[str, ...]) -> tuple[dict[str, Any], bool]:
    """Run rounds of operations, a line each; return their counts, and whether none failed."""
    done, folder = run_rounds(kind, rounds, seed, lambda one: click.echo(str(one), err=True), only=only)
    if folder:
        click.echo(f"{kind}: rounds have failed. Next: repeat them with --seed {seed}; their files are in {folder}",
                   err=True)
    return {"rounds": len(done), "seconds": round(sum(one.seconds for one in done)), **tally(done)}, folder is None


def outputs_on(rounds: int, seed: int) -> dict[str, dict[str, int]]:
    """Start several processes of each output at once, and kill them; return how many were rejected and killed."""
    with tempfile.TemporaryDirectory(prefix="dblake-stress-") as name:
        return {kind: dict(counts) for kind, counts in stress_outputs(Path(name), rounds, seed).items()}


def print_operations(counts: dict[str, dict[str, Any]]) -> None:
    """Print how often each kind of operation had each outcome."""
    for kind, facts in counts.items():
        outcomes = {name: outcomes for name, outcomes in facts.items() if isinstance(outcomes, dict)}
        page = Table("operation", "equal", "named", "failed",
                     title=f"{kind}: {facts['rounds']} rounds in {facts['seconds']} s")
        for name, numbers in outcomes.items():
            page.add_row(name, *(str(numbers[outcome]) for outcome in ("equal", "named", "failed")))
        Console(width=None if sys.stdout.isatty() else _PAGE).print(page)


def table(results: dict[str, Figures]) -> Table:
    """Return the figures as a table for the console."""
    page = Table("", *results, title="every step once, in order; state equal to the source")
    cells_by_kind = {kind: _cells(figures) for kind, figures in results.items()}
    for line in next(iter(cells_by_kind.values())):
        page.add_row(line, *(cells[line] for cells in cells_by_kind.values()))
    return page


def _cells(figures: Figures) -> dict[str, str]:
    return {
        "seconds": f"{figures.seconds:,.0f}",
        **{f"{job} killed, of runs": f"{figures.kills.get(job, 0)} of {runs}"
           for job, runs in sorted(figures.runs.items())},
        "transactions": f"{figures.transactions:,}", "steps written": f"{figures.steps:,}",
        "events": f"{figures.events:,}", "landing batches": f"{figures.batches:,}",
        "of them reconciled by killed runs": f"{figures.reconciled_by_the_killed:,}",
        "dumps": f"{figures.dumps:,}", "chunks": f"{figures.chunks:,}",
        "lag to landing, median": f"{figures.lag_median:.2f} s",
        "lag to landing, 99th percentile": f"{figures.lag_99th:.2f} s",
        "lag to landing, maximum (including kills)": f"{figures.lag_most:.2f} s",
    }


@click.command("stress")
@verbose_option
@click.option("--seconds", type=click.FloatRange(min=10), default=300.0, show_default=True,
              help="Duration on each database.")
@click.option("--kill-every", type=click.FloatRange(min=1), default=20.0, show_default=True,
              help="Average life of each process, in seconds.")
@click.option("--on", "kinds", type=click.Choice(["postgres", "mariadb", "mysql"]), multiple=True,
              default=("postgres", "mariadb"), show_default=True, help="Databases to test, one after the other.")
@click.option("--checks", type=click.IntRange(min=1), metavar="N",
              help="Instead run check N times beside writes, dumps, killed captures, reconcile and state.")
@click.option("--operations", is_flag=True,
              help="Instead change the live system at random: schemas, keys, grants, servers, imports, lost log.")
@click.option("--outputs", is_flag=True,
              help="Instead start several processes of each output at once and kill them, while rows change.")
@click.option("--rounds", type=click.IntRange(min=1), default=60, show_default=True,
              help="How many operations on each database, with --operations, or rounds of each output, with --outputs.")
@click.option("--only", multiple=True, metavar="OPERATION", help="With --operations: choose from these operations.")
@click.option("--seed", type=int, help="Repeat the writes of the run that printed this seed.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def stress(
    seconds: float, kill_every: float, kinds: tuple[Kind, ...], checks: int | None, operations: bool, outputs: bool,
    rounds: int, only: tuple[str, ...], seed: int | None, as_json: bool,
) -> int:
    """Kill capture, reconcile and state repeatedly while clients write; then verify every change."""
    console = Console(stderr=True)
    facts = machine.facts("databases", " ".join(kinds))
    seed = time.time_ns() % 100_000 if seed is None else seed
    results: dict[str, Figures] = {}
    checked: dict[str, Any] = {}
    if outputs:
        try:
            counts = outputs_on(rounds, seed)
        except AssertionError as failure:
            click.echo(f"outputs: {failure}", err=True)
            return int(ExitCode.BUG)
        click.echo(json.dumps({"seed": seed, "machine": facts, **counts}, indent=2))
        return int(ExitCode.DONE)
    if operations:
        return _operate(kinds, rounds, seed, only, facts, as_json=as_json)
    for kind in dict.fromkeys(kinds):
        duration = f"{checks} checks" if checks else f"{seconds:.0f} s"
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {kind} for {duration}, --seed {seed}")
        try:
            if checks:
                checked[kind] = checks_on(kind, checks, kill_every, seed)
            else:
                results[kind] = stress_on(kind, seconds, kill_every, seed)
        except AssertionError as failure:
            click.echo(f"{kind}: {failure}", err=True)
            return int(ExitCode.BUG)
    if checks:
        click.echo(json.dumps({"seed": seed, "machine": facts, **checked}, indent=2))
    elif as_json:
        output: dict[str, Any] = {"seed": seed, "machine": facts}
        click.echo(json.dumps(output | {kind: figures.facts() for kind, figures in results.items()}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else _PAGE).print(table(results))
    return int(ExitCode.DONE)


def _operate(
    kinds: tuple[Kind, ...], rounds: int, seed: int, only: tuple[str, ...], facts: Any, *, as_json: bool
) -> int:
    logging.getLogger("dblake").setLevel(logging.CRITICAL)
    counts, is_right = dict[str, dict[str, Any]](), True
    for kind in dict.fromkeys(kinds):
        click.echo(f"{time.strftime('%H:%M:%S')} {kind}: {rounds} operations, --seed {seed}", err=True)
        counts[kind], is_kind_right = operate_on(kind, rounds, seed, only)
        is_right &= is_kind_right
    if as_json:
        click.echo(json.dumps({"seed": seed, "machine": facts, **counts}, indent=2))
    else:
        print_operations(counts)
    return int(ExitCode.DONE if is_right else ExitCode.WRONG_DATA)


if __name__ == "__main__":
    run_job(stress)
