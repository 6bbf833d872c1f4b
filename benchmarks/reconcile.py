"""Landing → events beside a Spark job that only copies landing to another Delta table.

Both take all of landing at once, in one session, and append to tables that are not there yet: reconcile as one
micro-batch, the copy as one append. So what differs is what reconcile does.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.comparison import Comparison, Side
from benchmarks.capture_job import SOURCE
from pipelines.paths import Paths
from pipelines.reconcile import reconcile_once

_ALL_AT_ONCE = "100g"


def measure(spark: SparkSession, landed: Paths, folder: Path, rounds: int) -> tuple[Comparison, Paths]:
    """The comparison, and the last run's tables."""
    rows = spark.read.format("delta").load(landed.landing).count()
    ours, peers = [], []
    for number in range(rounds):
        copied, reconciled = folder / f"copied_{number}", Paths(str(folder / f"reconciled_{number}"), SOURCE)
        shutil.copytree(landed.landing, reconciled.landing)
        peers.append(seconds(lambda to=copied: _copy(spark, landed, to)))  # type: ignore[misc]
        ours.append(seconds(lambda of=reconciled: reconcile_once(spark, of, max_bytes_per_trigger=_ALL_AT_ONCE)))  # type: ignore[misc]
    return Comparison(
        "landing → events",
        Side("reconcile", rows, tuple(ours)),
        Side("Spark copies landing", rows, tuple(peers)),
        most=2.5,
    ), reconciled


def seconds(job: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _copy(spark: SparkSession, landed: Paths, to: Path) -> None:
    spark.read.format("delta").load(landed.landing).write.format("delta").mode("append").save(str(to))
