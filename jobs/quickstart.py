"""``quickstart``: replicate a PostgreSQL database under load on this machine and verify the copy."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from dblake.base.core.errors import ExitCode
from dblake.config import load_config
from jobs.cli.frame import run_job, verbose_option
from jobs.cli.sql_output import print_result
from pipelines.quickstart import Quickstart

_CONF = Path(__file__).parents[1] / "conf" / "quickstart.yaml"
_QUERIES = (
    "SELECT count(*) AS accounts, sum(abalance) AS money FROM pgbench_accounts",
    "SELECT bid, count(*) AS payments, sum(delta) AS paid FROM pgbench_history GROUP BY bid ORDER BY bid LIMIT 3",
    "SELECT aid, abalance, _valid_from, _valid_to FROM pgbench_accounts_history"
    " WHERE aid = (SELECT max_by(aid, abs(abalance)) FROM pgbench_accounts) ORDER BY _valid_from LIMIT 4",
)


@click.command("quickstart")
@verbose_option
@click.option("--conf", type=click.Path(path_type=Path), default=_CONF, metavar="FILE",
              help="Default: conf/quickstart.yaml.")
@click.option("--scale", type=click.IntRange(1), default=5, show_default=True,
              help="pgbench scale factor: 100,000 accounts each.")
@click.option("--rate", type=click.IntRange(4), default=300, show_default=True, help="Row changes per second.")
def quickstart(conf: Path, scale: int, rate: int) -> int:
    """Replicate a PostgreSQL database under load into Delta Lake, on this machine, and verify the copy.

    Starts its own PostgreSQL server, which needs no installation and ends with this command. All files are in the
    folder quickstart/, which every run recreates.
    """
    console = Console()
    run = Quickstart(load_config(conf), conf, console, scale=scale, changes_per_second=rate)
    comparisons = run.run()
    table = Table(Column("table", no_wrap=True), "rows: source", "state", "hash: source", "state", "")
    for comparison in comparisons:
        (rows, digest), (state_rows, state_digest) = comparison.source, comparison.state
        verdict = "[green]equal[/green]" if comparison.is_equal else "[red]DIFFERENT[/red]"
        table.add_row(
            comparison.table.partition(".")[2], f"{rows:,}", f"{state_rows:,}",
            f"{digest:x}"[-8:], f"{state_digest:x}"[-8:], verdict,
        )
    console.print(table)
    if not all(comparison.is_equal for comparison in comparisons):
        console.print("State differs from the source: this is a bug.")
        return ExitCode.BUG
    console.print("[bold]8. SQL over state and history[/bold]")
    for statement in _QUERIES:
        console.print(f"   [dim]{statement}[/dim]", highlight=False)
        print_result(run.query(statement), None)
    console.print(f"""[bold]Next steps[/bold]
   More queries:       ./spark-submit.sh sql --conf {conf} "SELECT * FROM pgbench_tellers_live LIMIT 5"
   Your own database:  copy conf/postgres.yaml to conf/mine.yaml, enter your database's address, then run
                       ./spark-submit.sh preflight --conf conf/mine.yaml
   Documentation:      README.md""", highlight=False, soft_wrap=True)
    return ExitCode.DONE


if __name__ == "__main__":
    run_job(quickstart)
