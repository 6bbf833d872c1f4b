"""``maintain`` beside capture, reconcile, state and a reader, over 1,000 batches: nothing fails, nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.capture.loop import Until
from dblake.config import MaintainConfig
from dblake.core.schema import Column, TableSchema
from dblake.lake.layout import Paths
from dblake.maintenance.run import maintain
from dblake.reconcile.stream import reconcile_once
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.source import MemorySource
from dblake.state.run import run_state
from tests.support.lake import CaptureLake

T = "public.t"
BATCHES = 1000
_MOST_FILES = 60
"""A table's files once all is still: what one round leaves, and never a file a batch."""


class Together:
    """Jobs that run over and over beside one another until told to stop; what one of them raised is raised."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def run(self, job: Callable[[], object]) -> None:
        def again() -> None:
            try:
                while not self._stop.is_set():
                    job()
            except BaseException as error:  # noqa: BLE001 - told by end()
                self._errors.append(error)
                self._stop.set()

        self._threads.append(threading.Thread(target=again))
        self._threads[-1].start()

    def wait(self, until: Callable[[], bool]) -> None:
        while not self._stop.is_set() and not until():
            time.sleep(0.2)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        if self._errors:
            raise self._errors[0]


def files(path: str) -> int:
    return len(DeltaTable(path).file_uris())


@pytest.mark.timeout(900)
def test_all_jobs_at_once_over_1000_batches(spark: SparkSession, tmp_path: Path) -> None:
    database, lake = MemoryDatabase(), CaptureLake(tmp_path)
    database.create_table(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
    database.make_slot("shop")
    source = MemorySource(database, name="shop", patterns=["public.*"])
    paths, drawn, stop = lake.paths, random.Random(11), threading.Event()

    def write() -> None:
        key = str(drawn.randrange(50))
        with database.begin() as transaction:
            there = any(row["id"] == key for row in database.rows(T))
            if not there:
                transaction.insert(T, {"id": key, "v": str(drawn.random())})
            elif drawn.random() < 0.3:
                transaction.delete(T, {"id": key})
            else:
                transaction.update(T, {"id": key}, {"v": str(drawn.random())})
        time.sleep(0.005)

    def keep() -> None:
        maintain(spark, paths, MaintainConfig())

    def read() -> None:
        if DeltaTable.is_deltatable(paths.state("public", "t")):
            keys = [row["_key"] for row in spark.read.format("delta").load(paths.state("public", "t")).collect()]
            assert len(keys) == len(set(keys))
        time.sleep(0.5)

    write()
    lake.dump(T)
    capture = threading.Thread(
        target=lake.capture, args=(source,),
        kwargs={"until": Until(), "stop": stop, "max_rows": 1, "commits_per_second": 100.0},
    )
    capture.start()
    together = Together()
    try:
        together.run(write)
        together.wait(lambda: DeltaTable.is_deltatable(paths.landing) and reached(paths) > 1)
        for job in (lambda: reconcile_once(spark, paths), lambda: run_state(spark, paths), keep, read):
            together.run(job)
        together.wait(lambda: reached(paths) >= BATCHES)
    finally:
        together.end()
        stop.set()
        capture.join(60)
    assert not capture.is_alive()
    lake.capture(source)
    reconcile_once(spark, paths)
    run_state(spark, paths)
    keep()

    landed = lake.landing()["batch"].to_pylist()
    assert sorted(set(landed)) == list(range(1, lake.reached.batch + 1)) and lake.reached.batch >= BATCHES
    state = spark.read.format("delta").load(paths.state("public", "t")).where("NOT _deleted").collect()
    assert {row["id"]: row["v"] for row in state} == {int(row["id"] or 0): row["v"] for row in database.rows(T)}
    events = spark.read.format("delta").load(paths.events)
    assert events.count() == events.select("incarnation", "lsn", "seq").distinct().count() == len(lake.reconciled()[0])
    assert {name: files(path) for name, path in tables(paths).items() if files(path) > _MOST_FILES} == {}


def reached(paths: Paths) -> int:
    return DeltaTable(paths.landing).transaction_version("capture/shop") or 0


def tables(paths: Paths) -> dict[str, str]:
    return {"landing": paths.landing, "events": paths.events, "windows": paths.windows, "schemas": paths.schemas,
            "frontier": paths.frontier, "state": paths.state("public", "t")}
