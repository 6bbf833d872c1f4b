"""Source → state of a table that is loaded for the first time, beside ``spark.read.jdbc`` → Delta.

Both sides are processes as a scheduler starts them, JVM included: ours is capture with a dump, then reconcile and
state; the peer is one Spark job that reads the table through JDBC in one partition. The peer's copy has no position,
no history and no order; it is the floor of what a first load can cost.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.capture_job import HOME, PASSWORD
from benchmarks.database import TABLE, Bench
from benchmarks.spark_half import Measured, Part, cost_of, run_with_children
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.transform.spark.session import spark_session

_ROWS = 1_000_000
SERVER = {"fsync": "off", "max_wal_size": "16GB", "shared_buffers": "512MB"}
DRIVER = "org.postgresql:postgresql:42.7.8"


def measure_first_load(folder: Path, rounds: int) -> list[Measured]:
    """Measure the first load of a million rows; a first run of the peer, which fetches its driver, does not count."""
    with EmbeddedPostgres(folder / "postgres", settings=SERVER) as server:
        bench = Bench(server, folder)
        bench.fill(_ROWS)
        bench.create_slot("start")
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/{bench.settings.database}"
        ours, peers = [], []
        for number in range(rounds + 1):
            copy = [sys.executable, "-m", "benchmarks.first_load", url, str(folder / f"copied_{number}")]
            peers.append(cost_of(partial(run_with_children, copy)))
            with bench.copied_slot("start") as slot:
                ours.append(cost_of(partial(_load, bench, slot, f"loaded_{number}")))
    measured = Measured("first load, source → state ÷ spark.read.jdbc", _ROWS, ours[1:], peers[1:])
    ratio = measured.cpu_ratio or 0
    return [Measured(measured.work, _ROWS, measured.ours, measured.peer, "CPU ≤ 1.0", ratio <= 1.0)]


def _load(bench: Bench, slot: str, warehouse: str) -> None:
    bench.capture(slot, warehouse, dump=True)
    conf = str(bench.warehouse(warehouse) / "bench.yaml")
    for job in ("reconcile", "state"):
        run_with_children([sys.executable, str(HOME / "jobs" / f"{job}.py"), "--conf", conf])


def _copy(url: str, to: str) -> None:
    """Copy the table through JDBC, in one partition."""
    spark = spark_session("copy", **{"spark.jars.packages": DRIVER})
    reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver").option("fetchsize", 10_000)
    rows = reader.option("url", url).option("dbtable", TABLE).option("user", "dblake").option("password", PASSWORD)
    rows.load().write.format("delta").save(to)


PARTS = (Part("First load", measure_first_load),)

if __name__ == "__main__":
    _copy(*sys.argv[1:3])
