"""Landing → events beside a Spark job that only copies landing to another Delta table.

Both take all of landing at once and append to tables that are not there yet: reconcile as one micro-batch, the copy as
one append. Once each is a job as its scheduler starts it, in a JVM of its own and measured to its end; and once both
run in one session that is warm, which is what a micro-batch of ``reconcile --continuous`` finds.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.capture_job import ENVIRONMENT, HOME, SOURCE, configure
from benchmarks.comparison import Comparison, Side
from benchmarks.database import Bench
from benchmarks.landed_rows import SOURCE as LANDED
from benchmarks.landed_rows import Rows, land_changes, land_dump
from benchmarks.process import run
from benchmarks.spark_half import (
    Cost,
    Measured,
    Part,
    cost_of,
    median_seconds,
    run_with_children,
    tree_cpu_seconds,
)
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.transform.reconcile.stream import reconcile_once, reconcile_until
from dblake.transform.spark.session import spark_session

_ALL_AT_ONCE = "100g"
_SINGLE_ROWS = 40
_CONF = """
warehouse: .
progress: file:./progress
source: {name: bench, type: postgres, host: h, database: d, user: u, password: "${env:NOT_NEEDED}", tables: ["*.*"]}
"""
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


def measure_log(folder: Path, rounds: int) -> list[Measured]:
    """Measure a million updates in one warm session."""
    return [_beside_copy("reconcile, log only, warm ÷ Spark copy", land_changes, (1_000_000,), folder, rounds, 1.0)]


def measure_dump(folder: Path, rounds: int) -> list[Measured]:
    """Measure a dump of a million rows, 250,000 changes in its windows and 250,000 after it, in one warm session."""
    counts = (1_000_000, 500_000)
    return [_beside_copy("reconcile, dump beside changes, warm ÷ Spark copy", land_dump, counts, folder, rounds, 1.2)]


def measure_job(folder: Path, rounds: int) -> list[Measured]:
    """Measure the same dump as a job that starts its JVM."""
    rows, ours = land_dump(f"{folder}/{LANDED}/landing", 1_000_000, 500_000), []
    for number in range(rounds):
        warehouse = folder / f"job_{number}"
        shutil.copytree(folder / LANDED / "landing", warehouse / LANDED / "landing")
        conf = warehouse / "bench.yaml"
        conf.write_text(_CONF)
        command = [sys.executable, str(HOME / "jobs" / "reconcile.py"), "--conf", str(conf)]
        ours.append(cost_of(partial(run_with_children, command)))
    rate = rows / median_seconds(ours)
    return [Measured("reconcile, dump beside changes, as a cold job", rows, ours, target="≥ 100,000 rows/s",
                     met=rate >= 100_000, facts={"rows_per_second": round(rate)})]


def measure_latency(folder: Path, _: int) -> list[Measured]:
    """One row after the other: from capture's commit to landing until the event is committed."""
    paths = Paths(str(folder), LANDED)
    rows = Rows(paths.landing)
    rows.change(4, 1000)
    rows.commit()
    stop, draw, waited = threading.Event(), random.Random(2), list[float]()
    running = threading.Thread(
        target=reconcile_until, args=(stop, lambda: spark_session("benchmark"), paths), kwargs={"every": 1.0}
    )
    running.start()
    events = Application.reconcile(LANDED)
    while newest_batch(paths.events, events) < 1:
        time.sleep(0.05)
    cpu = tree_cpu_seconds()
    for _ in range(_SINGLE_ROWS):
        time.sleep(draw.uniform(0.2, 1.8))
        rows.change(1, 1000)
        committed = time.perf_counter()
        rows.commit()
        while newest_batch(paths.events, events) < rows.batch - 1:
            time.sleep(0.01)
        waited.append(time.perf_counter() - committed)
    cpu = (tree_cpu_seconds() - cpu) / _SINGLE_ROWS
    stop.set()
    running.join()
    waited.sort()
    p50, p95 = waited[len(waited) // 2], waited[int(len(waited) * 0.95)]
    return [Measured(
        "landing → event, one row, continuous", 1, [Cost(p50, cpu)], target="p50 ≤ 1.7 s, p95 ≤ 3 s, ≤ 0.5 CPU s",
        met=p50 <= 1.7 and p95 <= 3.0 and cpu <= 0.5, facts={"p50": round(p50, 3), "p95": round(p95, 3)},
    )]


#: Warm sessions come last: their idle JVM costs a job memory and cores, and the CPU time of Python workers that end
#: during a later part would vanish.
PARTS = (
    Part("Reconcile: as a job", measure_job), Part("Reconcile: one row", measure_latency),
    Part("Reconcile: log only", measure_log), Part("Reconcile: dump beside changes", measure_dump),
)


def _beside_copy(
    work: str, land: Callable[..., int], counts: tuple[int, ...], folder: Path, rounds: int, most: float
) -> Measured:
    """Reconcile landing in one micro-batch beside a Spark job that reads, orders and appends it.

    First runs do not count.
    """
    spark = spark_session("benchmark")
    landed = Paths(str(folder), LANDED).landing
    rows, ours, peers = land(landed, *counts), [], []
    for number in range(rounds + 1):
        paths = Paths(str(folder / f"ours_{number}"), LANDED)
        shutil.copytree(landed, paths.landing)
        peers.append(cost_of(partial(_ordered_copy, spark, landed, str(folder / f"peer_{number}"))))
        ours.append(cost_of(partial(reconcile_once, spark, paths, max_bytes_per_trigger=_ALL_AT_ONCE)))
    measured = Measured(work, rows, ours[1:], peers[1:])
    return replace(measured, target=f"CPU ≤ {most:g}", met=(measured.cpu_ratio or 0) <= most)


def _ordered_copy(spark: SparkSession, landing: str, to: str) -> None:
    rows = spark.read.format("delta").load(landing).sortWithinPartitions("incarnation", "lsn", "seq")
    rows.write.format("delta").mode("append").save(to)


if __name__ == "__main__":
    _copy(spark_session("copy"), *sys.argv[1:3])
