"""Measure jobs with little or nothing to do: whole processes, children and JVMs included.

    python -m benchmarks.small_jobs [--rounds N] [--airflow VENV]

It starts its own PostgreSQL server with ten tables. A round writes 100 rows to each of them, captures them, and runs
``run``: with the new rows, with nothing to do, and with a check due. ``--airflow`` names Airflow's environment, and
adds one interval of the DAG, capture to check, by the start and the end of its tasks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.e2e.test_run import HOME, Shop
from tests.support.postgres import fresh_database
from trials.airflow.server import Airflow

_IDLE_JOBS = ("run", "reconcile", "state", "check", "capture --until-caught-up")
_ROWS = 100
_SAMPLE_SECONDS = 0.05
_SPARK, _LAUNCHER = b"org.apache.spark.deploy.SparkSubmit", b"org.apache.spark.launcher.Main"
_PR_SET_CHILD_SUBREAPER = 36
_DAG = f"""
import sys; sys.path += ["{HOME}/integrations/airflow", "{HOME}/lib"]
from dblake_airflow.dags import dags_from
globals().update(dags_from("%s"))
"""


@dataclass(frozen=True, slots=True)
class TreeResult:
    """The measurements of a process and all its descendants; ``seconds`` end with the process itself."""

    seconds: float
    cpu_seconds: float
    jvms: int


def main() -> None:
    """Print the measurements of every round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--airflow", type=Path, metavar="VENV", help="Airflow's environment; else without the DAG")
    options = parser.parse_args()
    # Descendants whose parent has ended, as a job's JVM, become ours, so that their CPU time counts.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "postgres") as server:
        with fresh_database(server) as database:
            measure(Shop(database, Path(folder)), options.rounds)
        if options.airflow:
            with fresh_database(server) as database:
                (Path(folder) / "airflow").mkdir()
                measure_interval(Shop(database, Path(folder) / "airflow"), options.airflow)


def measure(shop: Shop, rounds: int) -> None:
    """Print the measurements of the jobs in each round."""
    due = shop.conf.with_name("due.yaml")
    conf = json.loads(shop.conf.read_text(encoding="utf-8"))
    due.write_text(json.dumps(conf | {"run": {"check_seconds": 0, "maintain_seconds": None}}), encoding="utf-8")
    for number in range(rounds):
        shop.write(number * _ROWS + 1, (number + 1) * _ROWS)
        _print("run, 1,000 events in 10 tables", run_tree(_job(shop.conf, "run"), shop.environment))
        _print("run, check due", run_tree(_job(due, "run"), shop.environment))
        for job in _IDLE_JOBS:
            _print(f"{job}, nothing to do", run_tree(_job(shop.conf, *job.split()), shop.environment))


def measure_interval(shop: Shop, venv: Path) -> None:
    """Print what one interval of the DAG takes after a first one, with a check due."""
    conf = json.loads(shop.conf.read_text(encoding="utf-8"))
    shop.conf.write_text(
        json.dumps(conf | {"run": {"check_seconds": 0, "maintain_seconds": None}}), encoding="utf-8"
    )
    airflow = Airflow(venv, shop.conf.parent / "home", {"DBLAKE_VENV": sys.prefix, **shop.environment})
    (airflow.dags / "shop.py").write_text(_DAG % shop.conf, encoding="utf-8")
    airflow.command("db", "migrate")
    for first in (1, 1 + _ROWS):
        shop.database.run(*(f"INSERT INTO t{n} SELECT n, 'value ' || n FROM generate_series({first}, {first + 99}) n"
                            for n in range(10)))
        with Children() as children:
            airflow.command("dags", "test", "dblake_shop")
        began, ended = _newest_run(airflow.folder / "airflow.db")
        taken = TreeResult((ended - began).total_seconds(), children.cpu_seconds, len(children.jvms))
        _print("DAG, 1,000 events, capture to check", taken)


def _newest_run(database: Path) -> tuple[datetime, datetime]:
    """Return the start of the first task and the end of the last one of the newest run."""
    with closing(sqlite3.connect(database)) as connection:
        began, ended = connection.execute(
            "SELECT min(start_date), max(end_date) FROM task_instance WHERE run_id ="
            " (SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1)"
        ).fetchone()
    return datetime.fromisoformat(began), datetime.fromisoformat(ended)


def _job(conf: Path, job: str, *options: str) -> list[str]:
    return [sys.executable, str(HOME / "jobs" / f"{job}.py"), "--conf", str(conf), *options]


def _print(work: str, taken: TreeResult) -> None:
    print(f"{work:42} {taken.seconds:6.2f} s {taken.cpu_seconds:6.2f} CPU s  {taken.jvms} JVM", flush=True)


def run_tree(command: Sequence[str], environment: Mapping[str, str]) -> TreeResult:
    """Run a program and return what it and its descendants took. Raises CalledProcessError if it fails."""
    with Children() as children:
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - began
    return TreeResult(seconds, children.cpu_seconds, len(children.jvms))


class Children:
    """The descendants that start within the block, which waits for all of them."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.jvms: set[int] = set()
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def __enter__(self) -> Children:
        self._others = {pid for pid, parent in _parents().items() if parent == os.getpid()}
        self._began = _cpu_seconds()
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        while left := [pid for pid, parent in _parents().items() if parent == os.getpid() and pid not in self._others]:
            for pid in left:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        self._ended.set()
        self._sampler.join()
        self.cpu_seconds = _cpu_seconds() - self._began

    def _sample(self) -> None:
        """Collect the JVMs that run Spark, not those that assemble their command lines, nor children of either."""
        while not self._ended.wait(_SAMPLE_SECONDS):
            ours = set[int]()
            for pid, parent in sorted(_parents().items()):
                if (parent == os.getpid() or parent in ours) and parent not in self.jvms:
                    ours.add(pid)
                    with suppress(OSError):
                        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                        if _SPARK in command and _LAUNCHER not in command and command[0].endswith(b"java"):
                            self.jvms.add(pid)


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
