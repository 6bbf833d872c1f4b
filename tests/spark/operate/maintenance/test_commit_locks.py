"""On a local disk every job waits for the commit lock of each table that it commits to, as capture does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import SparkSession

from dblake.base.core.errors import SupersededByRedecode
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_rows
from dblake.config import MaintainConfig
from dblake.landing.control import ChunkEnd
from dblake.operate.maintenance.run import Maintenance
from dblake.operate.quality.run import run_check
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.redecode.run import redecode
from dblake.transform.state.run import run_state
from tests.model.dblog import High, Image, Low
from tests.support.landed import Change, land

HOME = Path(__file__).parents[4]
T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
HOLDER = """
import sys
from dblake.base.lake.locks import commit_lock
with commit_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Shop:
    """A source of one table, and the jobs by name; ``land`` adds a batch."""

    def __init__(self, spark: SparkSession, folder: Path, schema: TableSchema = T) -> None:
        self.spark, self.paths, self._schema = spark, Paths(str(folder), "shop"), schema
        self._batches = count(1)
        self.jobs: dict[str, Callable[[], object]] = {
            "reconcile": lambda: reconcile_once(spark, self.paths),
            "state": lambda: run_state(spark, self.paths),
            "check": lambda: run_check(spark, self.paths, [], everything=True),
            "redecode": lambda: redecode(spark, self.paths, 1),
        }

    def land(self) -> None:
        """Land a batch of one changed row and a chunk without rows."""
        batch = next(self._batches)
        lsn, name = 1000 * batch, f"chunk-{batch}"
        table, schema_id = self._schema.table, self._schema.schema_id
        end = ChunkEnd(dump_id="d", number=1, low_lsn=lsn, low_seq=0, schema_id=schema_id, rows=0, first_batch=batch)
        key = (str(batch),) if self._schema.primary_key else None
        row: Image = {"id": str(batch), "v": "x"}
        changed = Change(batch, 1, Position(1, lsn + 10), batch, table, "c", key, row, last=True)
        land(self.paths.landing, "shop", [
            Low(batch, 1, table, name, Position(1, lsn)), changed,
            High(batch, 1, table, name, Position(1, lsn + 20), batch, end),
        ], {table: self._schema})

    def path(self, table: str) -> str:
        if table == "state":
            return self.paths.state(*split_qualified(self._schema.table))
        return str(getattr(self.paths, table))

    def maintenance(self, name: str) -> Callable[[], object]:
        return Maintenance(self.spark, self.paths, MaintainConfig()).tasks()[name]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Return a warehouse with rows in every table."""
    shop = Shop(spark, tmp_path_factory.mktemp("warehouse"))
    shop.land()
    for job in shop.jobs.values():
        job()
    return shop


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the commit lock of a table in another process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HOME / "lib")},
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        holder.communicate(b"\n")


def wait_until_blocked(path: str, job: Future[object], waiting: int = 1) -> bool:
    """Return True once ``waiting`` threads have opened the table's lock; False if the job ends before.

    Another process holds the lock, so a thread of this one that has opened it is waiting for it.
    """
    folder, name = os.path.split(path)
    inode = os.stat(os.path.join(folder, "_commits", f"{name}.lock")).st_ino
    while not job.done():
        if count_open(inode) >= waiting:
            return True
        time.sleep(0.02)
    return False


def count_open(inode: int) -> int:
    """Return how many file descriptors of this process refer to a file."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.fstat(int(descriptor)).st_ino == inode
    return found


#: One table per job in the short suite.
CASES = [
    ("reconcile", "events"), ("state", "state"), ("check", "check_results"),
    *(pytest.param(job, table, marks=pytest.mark.slow) for job, table in (
        ("reconcile", "schemas"), ("reconcile", "windows"), ("state", "frontier"),
        ("redecode", "events"), ("redecode", "redecoded"),
    )),
]
MAINTAINED = {
    "landing": "landing", "events": "events", "state": "state public.t", "schemas": "schemas", "windows": "windows",
    "frontier": "frontier", "check_results": "check results", "redecoded": "redecoded",
}


@pytest.mark.parametrize(("job", "table"), CASES)
def test_job_waits_for_commit_lock(shop: Shop, job: str, table: str) -> None:
    shop.land()
    if job != "reconcile":
        shop.jobs["reconcile"]()
    require_blocked(shop.path(table), shop.jobs[job])


@pytest.mark.parametrize("table", [
    table if table in ("landing", "state") else pytest.param(table, marks=pytest.mark.slow) for table in MAINTAINED
])
def test_maintenance_waits_for_commit_lock(shop: Shop, table: str) -> None:
    orphan = Path(shop.path(table), "part-0-of-a-killed-writer.parquet")
    orphan.write_bytes(b"PAR1")
    month_ago = time.time() - 30 * 24 * 3600
    os.utime(orphan, (month_ago, month_ago))
    require_blocked(shop.path(table), shop.maintenance(MAINTAINED[table]))


def require_blocked(path: str, job: Callable[[], object]) -> None:
    version = DeltaTable(path).version()
    with ThreadPoolExecutor(1) as pool:
        with hold_lock(path):
            running = pool.submit(job)
            assert wait_until_blocked(path, running), running.result()
            assert DeltaTable(path).version() == version
        running.result()
    assert DeltaTable(path).version() > version


def test_commits_to_different_tables_do_not_block(shop: Shop) -> None:
    shop.land()
    with ThreadPoolExecutor(1) as pool, hold_lock(shop.path("landing")), hold_lock(shop.path("state")):
        assert pool.submit(shop.jobs["reconcile"]).result(120)


KEYLESS = TableSchema("public.k", (Column("id", "integer"), Column("v", "text")))


@pytest.mark.parametrize(
    "schema", [pytest.param(T, id="key", marks=pytest.mark.slow), pytest.param(KEYLESS, id="no key")]
)
def test_concurrent_state_jobs_fold_each_event_once(
    spark: SparkSession, tmp_path: Path, schema: TableSchema
) -> None:
    shop = Shop(spark, tmp_path, schema)
    shop.land()
    shop.jobs["reconcile"]()
    path = shop.path("state")
    with ThreadPoolExecutor(2) as pool:
        with hold_lock(path):
            first = pool.submit(shop.jobs["state"])
            assert wait_until_blocked(path, first), first.result()
            shop.land()
            shop.jobs["reconcile"]()
            # The second job has more events to fold, and waits, too.
            second = pool.submit(shop.jobs["state"])
            assert wait_until_blocked(path, second, waiting=2), second.result()
        first.result()
        second.result()
    shop.jobs["state"]()
    assert sorted(row["id"] for row in query_rows(path, "SELECT id FROM t")) == [1, 2]


def test_reconcile_blocked_by_redecode_appends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.land()
    shop.jobs["reconcile"]()
    shop.land()
    batch, path = newest_batch(shop.path("events"), "reconcile/shop"), shop.path("events")
    with ThreadPoolExecutor(1) as pool:
        with hold_lock(path):
            running = pool.submit(shop.jobs["reconcile"])
            assert wait_until_blocked(path, running), running.result()
            # The commit with which redecode replaces events.
            properties = CommitProperties(app_transactions=[Transaction(Application.redecode("shop"), 1)])
            table = DeltaTable(path)
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        with pytest.raises(SupersededByRedecode, match="while this reconcile ran"):
            running.result()
    assert newest_batch(path, "reconcile/shop") == batch
