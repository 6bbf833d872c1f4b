"""What object storage costs: requests by the age of the tables, and capture's rate beside that on a local disk.

    python -m benchmarks.object_storage [COMMITS …]         # requests of jobs with nothing or little to do
    python -m benchmarks.object_storage --rate CHANGES      # capture, with 30 ms added to every request

It starts the S3 server of the tests; a proxy before it counts and delays. Requests that grew with the number of commits
would make every job slower and dearer with the table's age. No JVM is started: none of these needs one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from benchmarks import machine
from benchmarks.capture_job import run_capture
from benchmarks.comparison import Comparison, Side
from benchmarks.database import Bench as Database
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import Location
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.landing.columns import LANDING
from dblake.landing.table import Reached
from dblake.operate.status.report import SourceReport, build_status
from dblake.operate.verification.run import compare_landed
from dblake.transform.reconcile.pending import reconciled_batch
from dblake.transform.reconcile.stream import ReconcileRun, reconcile_once
from dblake.transform.state.pending import folded_batch
from dblake.transform.state.run import run_state
from tests.support.lake import CaptureLake
from tests.support.s3 import S3_KEYS, S3Server, location, running_server, storage, storage_section
from tests.support.s3_proxy import S3Proxy

_TABLE = "public.t"
_DEFAULT_AGES = (30, 330)
_LATENCY_SECONDS, _LEAST_RATE, _ROUNDS, _ROWS = 0.03, 0.8, 3, 100_000
_SERVER = {"fsync": "off", "max_wal_size": "8GB"}


class Bench:
    """A table that lands one row per commit, on S3."""

    def __init__(self, server: S3Server, proxy: S3Proxy, folder: Path) -> None:
        self._proxy, self._folder = proxy, folder
        self._direct = location(server)
        self._warehouse = Location(self._direct, storage(proxy.port))
        self._database = MemoryDatabase()
        self._database.create_table(TableSchema(_TABLE, (Column("id", "integer", False, 1), Column("v", "text"))))
        self._database.make_slot("shop")
        self._source = MemorySource(self._database, name="shop", patterns=["public.*"])
        self._landed = 0

    def age(self, commits: int) -> None:
        """Land rows, and reconcile them, until there were so many commits."""
        lake = CaptureLake(self._folder, warehouse=self._direct)
        while self._landed < commits:
            for _ in range(10):
                with self._database.begin() as transaction:
                    transaction.insert(_TABLE, {"id": str(self._landed), "v": "a"})
                self._landed += 1
            lake.capture(self._source, max_rows=1, commits_per_second=10_000)
            reconcile_once(_no_spark, lake.paths)
            run_state(_no_spark, lake.paths)

    def measure(self) -> dict[str, list[str]]:
        """Return the requests of each job, as method and path."""
        paths = Paths(self._warehouse, "shop")
        lake = CaptureLake(self._folder, warehouse=self._warehouse)
        landing = lake.open_landing()
        last = landing.reached
        assert last is not None
        row = dict.fromkeys(LANDING.names) | {
            "batch": last.batch + 1, "lease_epoch": last.lease_epoch, "incarnation": 1, "kind": "heartbeat", "seq": 0,
            "last_in_txn": True, "landed_at": datetime.now(UTC),
        }
        rows = pa.Table.from_pylist([row], schema=LANDING)
        store = FileProgress(self._folder / "progress" / "shop")
        jobs: dict[str, Callable[[], object]] = {
            "open landing": lake.open_landing,
            "landing commit": lambda: landing.commit(
                rows, Reached(last.batch + 1, last.lease_epoch, last.server, last.resume)
            ),
        }
        counts = {name: self._count(job) for name, job in jobs.items()}
        reconcile_once(_no_spark, Paths(self._direct, "shop"))
        run = ReconcileRun(_no_spark, paths, "256m")
        jobs = {
            "reconcile with nothing to do": lambda: reconciled_batch(paths),
            "state with nothing to do": lambda: (folded_batch(paths), compare_landed(paths)),
            "status": lambda: build_status(paths, store, SourceReport(), late_seconds=60),
            "start of a continuous reconcile": lambda: ReconcileRun(_no_spark, paths, "256m").advance(),
            "poll of a continuous reconcile": run.has_new_batches,
        }
        counts |= {name: self._count(job) for name, job in jobs.items()}
        self._landed += 1
        return counts

    def _count(self, job: Callable[[], object]) -> list[str]:
        self._proxy.take()
        job()
        return self._proxy.take()


def _no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed for this")


def measure_rate(changes: int, rounds: int) -> Comparison:
    """Measure capture from the log to landing, on S3 with a delay and on a local disk in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="dblake-benchmark-") as name,
        running_server() as s3, S3Proxy(s3.port) as proxy,
        EmbeddedPostgres(Path(name) / "postgres", settings=_SERVER) as server,
    ):
        bench = Database(server, Path(name))
        bench.fill(_ROWS)
        bench.create_slot("beginning")
        bench.change(changes)
        seconds: dict[str, list[float]] = {"disk": [], "s3": [], "s3 without delay": []}
        for number in range(rounds):
            for store, measured in seconds.items():
                folder = bench.warehouse(f"{store.partition(' ')[0]}_{number}")
                proxy.set(latency_seconds=_LATENCY_SECONDS if store == "s3" else 0.0)
                warehouse = "" if store == "disk" else location(s3, port=proxy.port)
                section = None if store == "disk" else storage_section(storage(proxy.port))
                with bench.copied_slot("beginning") as slot:
                    landed = json.loads(run_capture(
                        folder, bench.configuration(folder, slot, warehouse, section), [], S3_KEYS
                    ).output)
                if landed["rows"] < changes:
                    raise RuntimeError(f"capture landed {landed['rows']} of {changes} changes")
                print(f"  {store:16} {landed}", flush=True)
                measured.append(landed["seconds"])
                shutil.rmtree(folder)
    return Comparison(
        "capture → landing on S3",
        Side(f"S3, {_LATENCY_SECONDS * 1000:.0f} ms per request", changes, tuple(seconds["s3"])),
        Side("local disk", changes, tuple(seconds["disk"])), least=_LEAST_RATE,
        also=(Side("S3 without delay", changes, tuple(seconds["s3 without delay"])),),
    )


def is_commit(request: str) -> bool:
    """Return True for a request of one commit in a Delta log; an open reads those since the newest checkpoint."""
    return re.search(r"/_delta_log/\d{20}\.json$", request) is not None


def print_rate(changes: int) -> None:
    """Print both rates and their ratio."""
    for name, fact in machine.facts("dblake", "as checked out", "psycopg2-binary").items():
        print(f"{name}: {fact}")
    compared = measure_rate(changes, _ROUNDS)
    for side in (compared.ours, compared.peer, *compared.also):
        print(f"{side.what:24} {side.rate:10,.0f} changes/s")
    print(f"ratio {compared.ratio:.2f}, target {compared.target}: {'met' if compared.met else 'missed'}")


def print_requests(ages: list[int]) -> None:
    """Print the requests of each job at each age."""
    with running_server() as server, S3Proxy(server.port) as proxy, tempfile.TemporaryDirectory() as folder:
        bench = Bench(server, proxy, Path(folder))
        for commits in ages:
            began = time.monotonic()
            bench.age(commits)
            print(f"{commits} commits ({time.monotonic() - began:.0f} s)")
            for name, requests in bench.measure().items():
                newer = sum(map(is_commit, requests))
                print(f"  {name:32} {len(requests):4} requests, {newer:3} of them of commits")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rate"]:
        print_rate(int(sys.argv[2]))
    else:
        print_requests([int(text) for text in sys.argv[1:]] or list(_DEFAULT_AGES))
