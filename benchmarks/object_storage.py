"""Requests that the jobs send to object storage while nothing or little is to do, by the age of the tables.

    python -m benchmarks.object_storage [COMMITS …]

It starts the S3 server of the tests and counts at a proxy before it. A figure that grows with the number of commits
would make every job slower and dearer with the table's age. No JVM is started: none of these needs one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from dblake.capture.file_progress import FileProgress
from dblake.core.position import Position
from dblake.core.schema import Column, TableSchema
from dblake.lake.frontier import Frontier, append_frontier
from dblake.lake.layout import Paths
from dblake.lake.storage import Location
from dblake.landing.columns import LANDING
from dblake.landing.table import Reached
from dblake.reconcile.stream import reconcile_once
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.source import MemorySource
from dblake.status.report import SourceReport, build_status
from tests.support.lake import CaptureLake
from tests.support.s3 import S3Server, location, running_server, storage
from tests.support.s3_proxy import S3Proxy

_TABLE = "public.t"
_DEFAULT_AGES = (30, 330)


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

    def measure(self) -> dict[str, Counter[str]]:
        """Return the requests of each job by method."""
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
        # As if state had folded all: what status counts is then not a backlog.
        direct = Paths(self._direct, "shop")
        append_frontier(direct, Frontier(reconcile_once(_no_spark, direct), Position(1, 1, 0)))
        jobs = {
            "reconcile with nothing to do": lambda: reconcile_once(_no_spark, paths),
            "status": lambda: build_status(paths, store, SourceReport(), late_seconds=60),
        }
        counts |= {name: self._count(job) for name, job in jobs.items()}
        self._landed += 1
        return counts

    def _count(self, job: Callable[[], object]) -> Counter[str]:
        self._proxy.take()
        job()
        return Counter(request.partition(" ")[0] for request in self._proxy.take())


def _no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed for this")


def main(ages: list[int]) -> None:
    """Print the requests of each job at each age."""
    with running_server() as server, S3Proxy(server.port) as proxy, tempfile.TemporaryDirectory() as folder:
        bench = Bench(server, proxy, Path(folder))
        for commits in ages:
            began = time.monotonic()
            bench.age(commits)
            print(f"{commits} commits ({time.monotonic() - began:.0f} s)")
            for name, counts in bench.measure().items():
                methods = ", ".join(f"{method} {count}" for method, count in sorted(counts.items()))
                print(f"  {name:30} {counts.total():4}  {methods}")


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or list(_DEFAULT_AGES))
