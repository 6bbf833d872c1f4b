"""The whole path in one command: a live PostgreSQL, dumped while it is written to, and the proof of the copy."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from dblake.config import load_config
from dblake.core.errors import ExitCode
from jobs.cli.frame import run_job, verbose_option
from jobs.cli.sql_output import show
from pipelines.quickstart import Quickstart

_CONF = Path(__file__).parents[1] / "conf" / "quickstart.yaml"
_QUESTIONS = (
    "SELECT count(*) AS accounts, sum(abalance) AS money FROM pgbench_accounts",
    "SELECT bid, count(*) AS payments, sum(delta) AS paid FROM pgbench_history GROUP BY bid ORDER BY bid LIMIT 3",
    "SELECT aid, abalance, _valid_from, _valid_to FROM pgbench_accounts_history"
    " WHERE aid = (SELECT max_by(aid, abs(abalance)) FROM pgbench_accounts) ORDER BY _valid_from LIMIT 4",
)


@click.command("quickstart")
@verbose_option
@click.option("--conf", type=click.Path(path_type=Path), default=_CONF, metavar="FILE", help="conf/quickstart.yaml.")
@click.option("--scale", type=click.IntRange(1), default=5, show_default=True, help="pgbench's: 100,000 accounts each.")
@click.option("--rate", type=click.IntRange(4), default=300, show_default=True, help="Row changes a second meanwhile.")
def quickstart(conf: Path, scale: int, rate: int) -> int:
    """Replicate a PostgreSQL database with live writes into Delta Lake, on this machine, and prove the copy right.

    Starts a PostgreSQL of its own, which needs no installation and ends with this command. What it makes is in the
    folder quickstart/ and is made anew each time.
    """
    console = Console()
    run = Quickstart(load_config(conf), conf, console, scale=scale, changes_per_second=rate)
    proofs = run.run()
    table = Table(Column("table", no_wrap=True), "rows: source", "state", "hash: source", "state", "")
    for proof in proofs:
        (rows, digest), (state_rows, state_digest) = proof.source, proof.state
        verdict = "[green]equal[/green]" if proof.equal else "[red]DIFFERENT[/red]"
        table.add_row(
            proof.table.partition(".")[2], f"{rows:,}", f"{state_rows:,}",
            f"{digest:x}"[-8:], f"{state_digest:x}"[-8:], verdict,
        )
    console.print(table)
    if not all(proof.equal for proof in proofs):
        console.print("State is not equal to the source: this is a bug.")
        return ExitCode.BUG
    console.print("[bold]7. SQL over state and history[/bold]")
    for question in _QUESTIONS:
        console.print(f"   [dim]{question}[/dim]", highlight=False)
        show(run.ask(question), None)
    console.print(f"""[bold]What next[/bold]
   Ask more:           ./spark-submit.sh sql --conf {conf} "SELECT * FROM pgbench_tellers_live LIMIT 5"
   Your own database:  cp conf/postgres.yaml conf/mine.yaml, put your database's address into it, then
                       ./spark-submit.sh preflight --conf conf/mine.yaml
   README.md goes on from there.""", highlight=False, soft_wrap=True)
    return ExitCode.DONE


if __name__ == "__main__":
    run_job(quickstart)
