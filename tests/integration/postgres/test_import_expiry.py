"""An import that is paused while landing expires: the log after its position stays, or its rows do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.names import split_qualified
from dblake.base.core.source import Source
from dblake.base.lake.query import query_rows
from dblake.config import MaintainConfig
from dblake.ingest.capture.dump_queue import first_batch_of_imports, read_requests, set_control
from dblake.ingest.capture.dump_task import DumpControl
from dblake.operate.maintenance.run import Maintenance
from dblake.operate.status.table_problems import window_problems
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.reconcile.windows import LOG_EXPIRED
from dblake.transform.state.run import run_state
from tests.support.backends import PostgresBackend
from tests.support.exports import export, queue_import
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"
EXPIRE_ALL = MaintainConfig().model_copy(update={"landing_days": 0})


class Place:
    """A table of three rows: an import has read the first, the others were updated since."""

    def __init__(self, backend: PostgresBackend, folder: Path, spark: SparkSession) -> None:
        self.backend, self.lake, self.spark = backend, CaptureLake(folder), spark
        backend.run("CREATE TABLE t (id int PRIMARY KEY, v text)",
                    "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3) n")
        self.source: Source = backend.source("public.*")
        self.capture()
        taken = export(backend, T, folder / "rows")
        backend.run("UPDATE t SET v = 'b' WHERE id > 1")
        self.capture()
        queue_import(self.lake, self.source, T, taken)
        self.lake.capture(self.source, chunk_size=1, redump=False, steps={("read", T): self.pause})
        self.reconcile()
        self.backend.run("UPDATE t SET v = 'b' WHERE id = 1")
        self.capture()
        self.reconcile()

    def pause(self) -> None:
        for request in read_requests(self.lake.store):
            set_control(self.lake.store, request, DumpControl.PAUSE)

    def capture(self) -> None:
        self.lake.capture(self.source, redump=False)

    def reconcile(self) -> None:
        reconcile_once(self.spark, self.lake.paths)

    def expire(self, first_needed: Callable[[], int | None]) -> int:
        """Expire all of landing that is not needed; return the oldest batch that is left."""
        Maintenance(self.spark, self.lake.paths, EXPIRE_ALL, first_needed).tasks()["landing"]()
        return int(query_rows(self.lake.paths.landing, "SELECT min(batch) AS oldest FROM t")[0]["oldest"])

    def resume(self) -> None:
        for request in read_requests(self.lake.store):
            set_control(self.lake.store, request, DumpControl.RUN)
        self.capture()
        self.reconcile()

    def state(self) -> dict[int, str]:
        run_state(self.spark, self.lake.paths, parallel=1, batches_per_step=100)
        rows = query_rows(self.lake.paths.state(*split_qualified(T)), "SELECT id, v FROM t WHERE NOT _deleted")
        return {row["id"]: row["v"] for row in rows}


@pytest.fixture
def place(database: Database, tmp_path: Path, spark: SparkSession) -> Iterator[Place]:
    backend = PostgresBackend(database)
    yield Place(backend, tmp_path, spark)
    backend.close()


def test_expiry_keeps_log_of_paused_import(place: Place) -> None:
    """Its files have outdated rows, which the log after their position evicts."""
    first = first_batch_of_imports(place.lake.store)
    assert first is not None and place.expire(lambda: first_batch_of_imports(place.lake.store)) == first
    place.resume()
    assert place.lake.dumps()[0]["state"] == "done"
    assert place.state() == {1: "b", 2: "b", 3: "b"}
    place.backend.run("UPDATE t SET v = 'c' WHERE id = 1")
    place.capture()
    place.reconcile()
    assert place.expire(lambda: first_batch_of_imports(place.lake.store)) > first


@pytest.mark.slow
def test_import_whose_log_expired_is_discarded(place: Place) -> None:
    """Maintenance that cannot see the import deletes its log: its rows do not count, and none is deleted."""
    first = first_batch_of_imports(place.lake.store)
    assert first is not None and place.expire(lambda: None) > first
    place.resume()
    assert place.state() == {1: "b", 2: "b", 3: "b"}
    rows = query_rows(place.lake.paths.windows, "SELECT DISTINCT status, reason FROM t WHERE batch > 5 ORDER BY 1")
    assert {"status": "discarded", "reason": LOG_EXPIRED} in rows
    assert [(one["code"], one["table"]) for one in window_problems(place.lake.paths)] == [("rows_discarded", T)]
    place.lake.dump(T)
    place.capture()
    place.reconcile()
    assert window_problems(place.lake.paths) == []
    assert place.state() == {1: "b", 2: "b", 3: "b"}
