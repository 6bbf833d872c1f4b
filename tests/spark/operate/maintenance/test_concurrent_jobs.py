"""``maintain`` beside capture, reconcile, state and a reader: nothing fails, nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.config import MaintainConfig
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.operate.maintenance.run import maintain
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.effort import EFFORT
from tests.support.lake import CaptureLake

T = "public.t"
_MAX_FILES = 60
"""Limit of a table's files after the last maintenance: far fewer than one per batch."""
BATCHES = 60 * EFFORT


class JobLoop:
    """Jobs that repeat concurrently until ``stop``, which raises the first error of any of them."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, job: Callable[[], object]) -> None:
        def repeat() -> None:
            try:
                while not self._stop.is_set():
                    job()
            except BaseException as error:  # noqa: BLE001 - raised by stop()
                self._errors.append(error)
                self._stop.set()

        self._threads.append(threading.Thread(target=repeat))
        self._threads[-1].start()

    def wait(self, until: Callable[[], bool]) -> None:
        while not self._stop.is_set() and not until():
            time.sleep(0.2)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        if self._errors:
            raise self._errors[0]


def files(path: str) -> int:
    return len(DeltaTable(path).file_uris())


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_maintain_beside_all_jobs_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    database, lake = MemoryDatabase(), CaptureLake(tmp_path)
    database.create_table(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
    database.make_slot("shop")
    source = MemorySource(database, name="shop", patterns=["public.*"])
    paths, random_source, stop = lake.paths, random.Random(11), threading.Event()

    def write() -> None:
        key = str(random_source.randrange(50))
        with database.begin() as transaction:
            exists = any(row["id"] == key for row in database.rows(T))
            if not exists:
                transaction.insert(T, {"id": key, "v": str(random_source.random())})
            elif random_source.random() < 0.3:
                transaction.delete(T, {"id": key})
            else:
                transaction.update(T, {"id": key}, {"v": str(random_source.random())})
        time.sleep(0.005)

    def maintain_all() -> None:
        maintain(spark, paths, MaintainConfig())

    def read() -> None:
        if DeltaTable.is_deltatable(paths.state("public", "t")):
            keys = DeltaTable(paths.state("public", "t")).to_pyarrow_table(columns=["_key"])["_key"].to_pylist()
            assert len(keys) == len(set(keys))
        time.sleep(0.5)

    write()
    lake.dump(T)
    capture = threading.Thread(
        target=lake.capture, args=(source,),
        kwargs={"until": Until(), "stop": stop, "max_rows": 1, "commits_per_second": 100.0},
    )
    capture.start()
    jobs = JobLoop()
    try:
        jobs.start(write)
        jobs.wait(lambda: DeltaTable.is_deltatable(paths.landing) and landed_batch(paths) > 1)
        for job in (lambda: reconcile_once(spark, paths), lambda: run_state(spark, paths), maintain_all, read):
            jobs.start(job)
        jobs.wait(lambda: landed_batch(paths) >= BATCHES)
    finally:
        jobs.stop()
        stop.set()
        capture.join(60)
    assert not capture.is_alive()
    lake.capture(source)
    reconcile_once(spark, paths)
    run_state(spark, paths)
    maintain_all()

    landed = lake.landing()["batch"].to_pylist()
    assert sorted(set(landed)) == list(range(1, lake.reached.batch + 1)) and lake.reached.batch >= BATCHES
    state = DeltaTable(paths.state("public", "t")).to_pyarrow_table().to_pylist()
    rows = {row["id"]: row["v"] for row in state if not row["_deleted"]}
    assert rows == {int(row["id"] or 0): row["v"] for row in database.rows(T)}
    events = DeltaTable(paths.events).to_pyarrow_table(columns=["incarnation", "lsn", "seq"])
    distinct = events.group_by(events.column_names).aggregate([])
    assert events.num_rows == distinct.num_rows == len(lake.reconciled()[0])
    assert {name: files(path) for name, path in tables(paths).items() if files(path) > _MAX_FILES} == {}


def landed_batch(paths: Paths) -> int:
    return DeltaTable(paths.landing).transaction_version("capture/shop") or 0


def tables(paths: Paths) -> dict[str, str]:
    return {"landing": paths.landing, "events": paths.events, "windows": paths.windows, "schemas": paths.schemas,
            "frontier": paths.frontier, "state": paths.state("public", "t")}
