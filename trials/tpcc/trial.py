"""Try TPC-C's consistency conditions at random points in time: ``./spark-submit.sh trial tpcc``.

Terminals commit New-Order, Payment and Delivery transactions while ``up`` captures them, and the jobs of ``up`` are
killed by SIGKILL again and again. ``sql --at`` asks the conditions 3.3.2.1 to 3.3.2.4 of the TPC-C specification at
random transactions of the run. Guarantee: exits 70 unless every point that was asked meets them.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from dblake.base.core.errors import DblakeError, ExitCode
from jobs.cli.frame import run_job, verbose_option
from trials.databases import Application, Kind, application
from trials.frame import Expectation, Jobs, run_trial
from trials.tpcc.workload import TABLES, Terminals, load

CONDITIONS = {
    "3.3.2.1: W_YTD is the sum of D_YTD":
        "SELECT count(*) FROM {s}.warehouse LEFT JOIN"
        " (SELECT d_w_id, sum(d_ytd) AS ytd FROM {s}.district GROUP BY d_w_id) ON d_w_id = w_id"
        " WHERE w_ytd IS DISTINCT FROM ytd",
    "3.3.2.2: D_NEXT_O_ID follows the newest order and new order":
        "SELECT count(*) FROM {s}.district"
        " LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS newest FROM {s}.orders GROUP BY o_w_id, o_d_id)"
        " ON o_w_id = d_w_id AND o_d_id = d_id"
        " LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS waiting FROM {s}.new_order GROUP BY no_w_id, no_d_id)"
        " ON no_w_id = d_w_id AND no_d_id = d_id"
        " WHERE d_next_o_id - 1 IS DISTINCT FROM newest OR waiting <> newest",
    "3.3.2.3: new orders have no gap":
        "SELECT count(*) FROM (SELECT max(no_o_id) - min(no_o_id) + 1 AS span, count(*) AS orders"
        " FROM {s}.new_order GROUP BY no_w_id, no_d_id) WHERE span <> orders",
    "3.3.2.4: O_OL_CNT counts the order lines":
        "SELECT count(*) FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS lines FROM {s}.orders GROUP BY o_w_id, o_d_id)"
        " FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS found FROM {s}.order_line GROUP BY ol_w_id, ol_d_id)"
        " ON ol_w_id = o_w_id AND ol_d_id = o_d_id WHERE lines IS DISTINCT FROM found",
}
_SAMPLE = ("SELECT incarnation, lsn FROM (SELECT DISTINCT incarnation, lsn FROM dblake.events"
           " WHERE origin = 'log' AND (incarnation, lsn) > ({incarnation}, {lsn})) USING SAMPLE {count}")
_END = "SELECT incarnation, lsn FROM dblake.frontier ORDER BY batch DESC LIMIT 1"
_STARTED = re.compile(r"started (\w+), process (\d+)")
_POINTS_A_SAMPLE = 5
_KILL_SECONDS = (4.0, 12.0)
_SETTLE_SECONDS = 240


@dataclass
class Trial:
    """One trial on one database; all its files are in ``folder``."""

    kind: Kind
    folder: Path
    seconds: int
    seed: int
    console: Console
    _points: int = field(default=0, init=False)
    _orders: list[int] = field(default_factory=list, init=False)
    _violations: list[str] = field(default_factory=list, init=False)
    _kills: Counter[str] = field(default_factory=Counter, init=False)

    def run(self) -> list[Expectation]:
        """Run the trial and return its expectations in order."""
        self.console.print(f"[bold]{self.kind}: {self.seconds} s with seed {self.seed}[/bold]")
        with application(self.kind, self.folder) as app:
            load(app)
            conf = self.folder / "shop.yaml"
            app.write_conf(conf, state={"interval_seconds": 1})
            jobs = Jobs(conf, app.environment)
            jobs.require("preflight", "--init", "--admin-user", app.admin, "--admin-password-env", "ADMIN_PASSWORD")
            with jobs.running("up") as up:
                self._wait_for_first_dump(jobs, app)
                with Terminals(app, self.seed) as terminals:
                    self._sample_and_kill(jobs, app)
                verified = self._verify(jobs)
                is_running = up.poll() is None
        kills = ", ".join(f"{name} {count} times" for name, count in sorted(self._kills.items()))
        orders = f"{min(self._orders)} to {max(self._orders)} orders" if self._orders else "no order"
        return [
            Expectation("Jobs were killed, and up has started them again", bool(kills) and is_running, kills or "none"),
            Expectation("Every sampled point meets the consistency conditions",
                        self._points > 0 and not self._violations,
                        "; ".join(self._violations[:5]) or f"{self._points} points with {orders}"),
            Expectation("State equals the source at the end", verified.returncode == ExitCode.DONE,
                        f"{terminals.committed:,} transactions" if verified.returncode == ExitCode.DONE
                        else (verified.stdout + verified.stderr)[-500:]),
        ]

    def _wait_for_first_dump(self, jobs: Jobs, app: Application) -> None:
        """Wait until all tables are complete: before that a point has only part of their rows."""
        tables = {f"{app.schema}.{table}" for table in TABLES}
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            status = json.loads(jobs.require("status", "--json"))
            followed = {name for name, life in status["captured"].items() if life["state"] == "followed"}
            if tables <= followed and tables <= set(status["tables"]):
                return
            if time.monotonic() > deadline:
                raise DblakeError("the first dump does not end", next_step=f"read {jobs.log('up')}")
            time.sleep(0.5)

    def _sample_and_kill(self, jobs: Jobs, app: Application) -> None:
        (begin,) = json.loads(jobs.require("sql", "--json", _END))
        end, is_over = time.monotonic() + self.seconds, threading.Event()
        killer = threading.Thread(target=self._kill_jobs, args=(jobs, is_over), daemon=True)
        killer.start()
        try:
            while time.monotonic() < end:
                sampled = json.loads(jobs.require("sql", "--json", _SAMPLE.format(**begin, count=_POINTS_A_SAMPLE)))
                for point in sampled:
                    self._ask(jobs, app, f"{point['incarnation']}/{point['lsn']}")
                self._ask(jobs, app, "now")
        finally:
            is_over.set()
            killer.join()

    def _kill_jobs(self, jobs: Jobs, is_over: threading.Event) -> None:
        """Kill the newest process of one of the jobs that ``up`` runs, again and again."""
        choice = random.Random(self.seed)
        while not is_over.wait(choice.uniform(*_KILL_SECONDS)):
            started = dict(_STARTED.findall(jobs.log("up").read_text(encoding="utf-8")))
            name = choice.choice(sorted(started))
            with suppress(ProcessLookupError):
                os.kill(int(started[name]), signal.SIGKILL)
                self._kills[name] += 1

    def _ask(self, jobs: Jobs, app: Application, point: str) -> None:
        """Ask all conditions at one point; each counts the places that violate it."""
        counts = [f"({query.format(s=app.schema)}) AS c{n}" for n, query in enumerate(CONDITIONS.values())]
        query = f"SELECT {', '.join(counts)}, (SELECT count(*) FROM {app.schema}.orders) AS orders"
        (row,) = json.loads(jobs.require("sql", "--json", "--at", point, query))
        self._points += 1
        self._orders.append(row["orders"])
        self._violations += [
            f"{condition} at {point}: {row[f'c{n}']} places" for n, condition in enumerate(CONDITIONS) if row[f"c{n}"]
        ]

    def _verify(self, jobs: Jobs) -> subprocess.CompletedProcess[str]:
        return jobs.run("verify", "--wait", seconds=_SETTLE_SECONDS)


@click.command("tpcc")
@verbose_option
@click.option("--database", type=click.Choice(["postgres", "mariadb"]), default="postgres", show_default=True)
@click.option("--seconds", type=click.IntRange(min=10), default=90, show_default=True, help="Seconds under load.")
@click.option("--seed", type=int, default=None, help="Start of all random choices; default: a random one.")
@click.option("--folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder for all files, kept afterwards; default: a temporary folder, deleted on success.")
def tpcc(database: Kind, seconds: int, seed: int | None, folder: Path | None) -> int:
    """Ask TPC-C's consistency conditions at random points while jobs are killed, on a dedicated server."""
    console = Console()
    chosen = random.randrange(1_000_000) if seed is None else seed
    return run_trial("tpcc", folder, console,
                     lambda path: Trial(database, path, seconds, chosen, console).run())


if __name__ == "__main__":
    run_job(tpcc)
