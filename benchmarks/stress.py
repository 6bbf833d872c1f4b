"""The stress oracle in its long form: five minutes of steps, dumps and deaths on each database, told as figures.

With ``--checks`` it is runs of ``check`` beside all running jobs instead, none of which may find anything.

``./spark-submit.sh stress`` runs it, on servers of its own, in a temporary folder. It ends with 70 if a step is
missing, told twice, out of order or not what the source holds; the figures are those of runs that were right.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from dblake.core.errors import ExitCode
from dblake.source.postgres.embedded import EmbeddedPostgres
from dblake.spark.session import spark_session
from jobs.cli.frame import run_job, verbose_option
from tests.support.clean import run_checks_under_load
from tests.support.mysql import MysqlServer
from tests.support.rig import PACE, rig_at
from tests.support.stress import Figures, Stress

Kind = Literal["postgres", "mariadb", "mysql"]

_JOBS = ("reconcile", "state")
_PAGE = 120


def server(kind: Kind, folder: Path) -> EmbeddedPostgres | MysqlServer:
    """One of our own, to be entered."""
    return EmbeddedPostgres(folder / "server") if kind == "postgres" else MysqlServer(kind, folder / "server")


def stress_on(kind: Kind, seconds: float, kill_every: float, seed: int) -> Figures:
    """One run. Raises AssertionError if anything is not as it was written."""
    with tempfile.TemporaryDirectory(prefix="dblake-stress-") as name:
        folder = Path(name)
        with server(kind, folder) as database, rig_at(database, folder, **PACE) as rig:
            stress = Stress(rig, seed=seed, seconds=seconds, kill_every=kill_every, jobs=_JOBS)
            took, writers = stress.run()
            rig.verify_tables()
            return stress.figures(took, writers)


def checks_on(kind: Kind, checks: int, kill_every: float, seed: int) -> dict[str, Any]:
    """So many checks on one database, whatever runs and dies beside them. Raises AssertionError for what one finds."""
    with tempfile.TemporaryDirectory(prefix="dblake-stress-") as name:
        folder = Path(name)
        with server(kind, folder) as database, rig_at(database, folder, **PACE) as rig:
            spark = spark_session("stress")

            def told(line: str) -> None:
                click.echo(f"{time.strftime('%H:%M:%S')} {kind}: {line}", err=True)

            return run_checks_under_load(rig, spark, checks, seed=seed, kill_every=kill_every, on_run=told).facts()


def table(found: dict[str, Figures]) -> Table:
    """For people."""
    page = Table("", *found, title="every step once, in order; state equal to the source")
    of_all = {kind: _cells(figures) for kind, figures in found.items()}
    for line in next(iter(of_all.values())):
        page.add_row(line, *(cells[line] for cells in of_all.values()))
    return page


def _cells(figures: Figures) -> dict[str, str]:
    return {
        "seconds": f"{figures.seconds:,.0f}",
        **{f"{job} killed, of runs": f"{figures.kills.get(job, 0)} of {runs}"
           for job, runs in sorted(figures.runs.items())},
        "transactions": f"{figures.transactions:,}", "steps written": f"{figures.steps:,}",
        "events": f"{figures.events:,}", "landing batches": f"{figures.batches:,}",
        "of them reconciled by runs that died": f"{figures.reconciled_by_the_killed:,}",
        "dumps": f"{figures.dumps:,}", "chunks": f"{figures.chunks:,}",
        "lag to landing, median": f"{figures.lag_median:.2f} s",
        "lag to landing, 99th percentile": f"{figures.lag_99th:.2f} s",
        "lag to landing, most (deaths included)": f"{figures.lag_most:.2f} s",
    }


@click.command("stress")
@verbose_option
@click.option("--seconds", type=click.FloatRange(min=10), default=300.0, show_default=True, help="On each database.")
@click.option("--kill-every", type=click.FloatRange(min=1), default=20.0, show_default=True,
              help="Seconds that each process lives, about.")
@click.option("--on", "kinds", type=click.Choice(["postgres", "mariadb", "mysql"]), multiple=True,
              default=("postgres", "mariadb"), show_default=True, help="Which databases, one after the other.")
@click.option("--checks", type=click.IntRange(min=1), metavar="N",
              help="N runs of check instead, while writes, dumps, captures that die, reconcile and state go on.")
@click.option("--seed", type=int, help="Repeats the writes of a run; told when it starts.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def stress(
    seconds: float, kill_every: float, kinds: tuple[Kind, ...], checks: int | None, seed: int | None, as_json: bool
) -> int:
    """Kill capture, reconcile and state over and over while rows count their own changes; then look at every one."""
    console = Console(stderr=True)
    facts = machine.facts("databases", " ".join(kinds))
    seed = time.time_ns() % 100_000 if seed is None else seed
    found: dict[str, Figures] = {}
    checked: dict[str, Any] = {}
    for kind in dict.fromkeys(kinds):
        long = f"{checks} checks" if checks else f"{seconds:.0f} s"
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {kind} for {long}, --seed {seed}")
        try:
            if checks:
                checked[kind] = checks_on(kind, checks, kill_every, seed)
            else:
                found[kind] = stress_on(kind, seconds, kill_every, seed)
        except AssertionError as wrong:
            click.echo(f"{kind}: {wrong}", err=True)
            return int(ExitCode.BUG)
    if checks:
        click.echo(json.dumps({"seed": seed, "machine": facts, **checked}, indent=2))
    elif as_json:
        told: dict[str, Any] = {"seed": seed, "machine": facts}
        click.echo(json.dumps(told | {kind: figures.facts() for kind, figures in found.items()}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else _PAGE).print(table(found))
    return int(ExitCode.DONE)


if __name__ == "__main__":
    run_job(stress)
