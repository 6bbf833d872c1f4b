"""The whole path on S3: by the same jobs and the same checks as on a local disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import dblake.reconcile.runner
from dblake.config import MaintainConfig
from dblake.lake.storage import join
from dblake.lake.tables import create_table, open_table
from dblake.maintenance.run import maintain
from dblake.quality.run import run_check
from dblake.reconcile.stream import reconcile_once
from dblake.spark.storage import require_storage
from dblake.sql.query import query
from dblake.state.run import run_state
from tests.support.rig import T, rig_on
from tests.support.s3 import SECRET_KEY, S3Server, location
from tests.support.s3_proxy import COMMIT, Fault, Rule, S3Proxy

ROWS = pa.schema([("n", pa.int64())])


def test_state_on_s3_equals_source(
    spark: SparkSession, s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path,
) -> None:
    """Capture is a process, as users run it."""
    warehouse = location(s3)
    require_storage(spark, warehouse)
    with rig_on("postgres", request, tmp_path, warehouse=warehouse) as rig:
        rig.lake.dump(T)
        rig.catch_up()
        with rig.load(seed=22):
            rig.catch_up()
        rig.catch_up()
        reconcile_once(spark, rig.lake.paths)
        run_state(spark, rig.lake.paths)
        assert rig.verify_tables() > 0
    assert not list(tmp_path.rglob("*.parquet")), "something wrote to the local disk"


@pytest.mark.parametrize(
    "commits", [(15, 25), pytest.param((200, 800), marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_contested_commits_of_spark_and_delta_rs_lose_none(
    spark: SparkSession, s3: S3Server, commits: tuple[int, int]
) -> None:
    warehouse = location(s3)
    require_storage(spark, warehouse)
    table = join(warehouse, "t")
    create_table(table, ROWS)

    def append_by_spark() -> None:
        for n in range(commits[0]):
            append(spark, table, n)

    def append_by_delta_rs() -> None:
        opened = open_table(table)
        for n in range(commits[1]):
            write_deltalake(opened, pa.table({"n": [10_000 + n]}, schema=ROWS), mode="append")

    with ThreadPoolExecutor(2) as pool:
        for writer in [pool.submit(append_by_spark), pool.submit(append_by_delta_rs)]:
            writer.result()
    rows = sorted(open_table(table).to_pyarrow_table()["n"].to_pylist())
    assert rows == [*range(commits[0]), *range(10_000, 10_000 + commits[1])]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.FAILED_ANSWER, Fault.SLOW_DOWN])
def test_spark_commit_with_fault_is_done_once(spark: SparkSession, s3: S3Server, fault: Fault) -> None:
    with S3Proxy(s3.port) as proxy:
        warehouse = location(s3, port=proxy.port)
        require_storage(spark, warehouse)
        table = join(warehouse, "t")
        create_table(table, ROWS)
        proxy.set(Rule(fault, COMMIT, times=1))
        append(spark, table, 1)
        assert proxy.fault_counts() == {fault: 1}
        opened = open_table(table)
        assert (opened.version(), opened.count()) == (1, 1)


def append(spark: SparkSession, table: str, n: int) -> None:
    spark.range(n, n + 1, numPartitions=1).withColumnRenamed("id", "n").write.format("delta").mode("append").save(table)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_jobs_work_on_s3(
    spark: SparkSession, s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MariaDB; Spark decodes on its executors, as it does with more rows."""
    monkeypatch.setattr(dblake.reconcile.runner, "_SMALL_BYTES", 0)
    warehouse = location(s3)
    require_storage(spark, warehouse)
    with rig_on("mariadb", request, tmp_path, warehouse=warehouse) as rig:
        rig.lake.dump(T)
        with rig.load(seed=22):
            rig.catch_up()
        rig.catch_up()
        rig.verify()
        paths = rig.lake.paths
        reconcile_once(spark, paths)
        run_state(spark, paths)
        rig.verify_tables()
        rows = query(spark, paths, f"SELECT count(*) FROM {T}_live").first()
        assert rows is not None and rows[0] == len(rig.backend.rows(T))
        maintain(spark, paths, MaintainConfig())
        rig.verify_tables()
        run_check(spark, paths, []).require_success()
    keys = s3.keys(warehouse.split("/")[2])
    assert "lake/shop/quality/docs/index.html" in keys
    assert not [key for key in keys if key.endswith((".tmp", ".lock"))], "renames or locks"
    assert SECRET_KEY not in str(spark.sparkContext.getConf().getAll())
