"""Landing → events beside a Spark job that only copies landing to another Delta table.

Both take all of landing at once and append to tables that are not there yet: reconcile as one micro-batch, the copy as
one append. Once each is a job as its scheduler starts it, in a JVM of its own and measured to its end; and once both
run in one session that is warm, which is what a micro-batch of ``reconcile --continuous`` finds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.capture_job import ENVIRONMENT, HOME, SOURCE, configure
from benchmarks.comparison import Comparison, Side
from benchmarks.database import Bench
from benchmarks.process import run
from dblake.lake.layout import Paths
from dblake.reconcile.stream import reconcile_once
from dblake.spark.session import spark_session

_ALL_AT_ONCE = "100g"
_MOST = 2.5


def measure_jobs(bench: Bench, landed: Paths, rows: int, folder: Path, rounds: int) -> Comparison:
    """Each a job of its own."""
    ours, peers = [], []
    for number in range(rounds):
        warehouse = folder / f"job_{number}"
        shutil.copytree(landed.landing, Paths(str(warehouse), SOURCE).landing)
        configure(warehouse, bench.configuration(warehouse, "start"))
        copies = [sys.executable, "-m", "benchmarks.reconcile", landed.landing, str(folder / f"copied_by_job_{number}")]
        reconciles = [sys.executable, str(HOME / "jobs" / "reconcile.py"), "--conf", str(warehouse / "bench.yaml")]
        peers.append(run(copies, ENVIRONMENT).seconds)
        ours.append(run(reconciles, ENVIRONMENT).seconds)
    return Comparison(
        "landing → events, each a job with its JVM's start",
        Side("reconcile", rows, tuple(ours)),
        Side("a Spark job that copies landing", rows, tuple(peers)),
        most=_MOST,
    )


def measure_warm(spark: SparkSession, landed: Paths, rows: int, folder: Path, rounds: int) -> tuple[Comparison, Paths]:
    """In one session, and the last run's tables. A first run of each is not counted."""
    ours, peers = [], []
    for number in range(rounds + 1):
        copied, reconciled = folder / f"copied_{number}", Paths(str(folder / f"reconciled_{number}"), SOURCE)
        shutil.copytree(landed.landing, reconciled.landing)
        peers.append(seconds(lambda to=copied: _copy(spark, landed.landing, str(to))))  # type: ignore[misc]
        ours.append(seconds(lambda of=reconciled: reconcile_once(spark, of, max_bytes_per_trigger=_ALL_AT_ONCE)))  # type: ignore[misc]
    return Comparison(
        "landing → events, in one warm session",
        Side("reconcile", rows, tuple(ours[1:])),
        Side("Spark copies landing", rows, tuple(peers[1:])),
        most=_MOST,
    ), reconciled


def seconds(job: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _copy(spark: SparkSession, landing: str, to: str) -> None:
    spark.read.format("delta").load(landing).write.format("delta").mode("append").save(to)


if __name__ == "__main__":
    _copy(spark_session("copy"), *sys.argv[1:3])
