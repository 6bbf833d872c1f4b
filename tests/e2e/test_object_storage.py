"""The whole path on S3 and on a local disk: by the same jobs and the same checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dblake.transform.reconcile.runner
from dblake.config import MaintainConfig
from dblake.operate.maintenance.run import maintain
from dblake.operate.quality.run import run_check
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.spark.storage import require_storage
from dblake.transform.state.run import run_state
from tests.support.rig import T, rig_on
from tests.support.s3 import SECRET_KEY, S3Server, location
from tests.support.sql_rows import sql_rows


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("postgres", "s3"),
        pytest.param("postgres", "disk", marks=pytest.mark.slow),
        pytest.param("mariadb", "s3", marks=pytest.mark.slow),
        pytest.param("mariadb", "disk", marks=pytest.mark.slow),
    ],
)
def test_state_equals_source_on_every_store(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str, store: str,
) -> None:
    """Capture is a process, as users run it."""
    warehouse = location(request.getfixturevalue("s3")) if store == "s3" else None
    if warehouse:
        require_storage(spark, warehouse)
    with rig_on(kind, request, tmp_path, warehouse=warehouse) as rig:
        rig.lake.dump(T)
        rig.catch_up()
        with rig.load(seed=22):
            rig.catch_up()
        rig.catch_up()
        reconcile_once(spark, rig.lake.paths)
        run_state(spark, rig.lake.paths)
        assert rig.verify_tables() > 0
    is_on_disk = any(tmp_path.rglob("*.parquet"))
    assert is_on_disk == (warehouse is None), "the tables are elsewhere than configured"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_other_jobs_work_on_s3(
    spark: SparkSession, s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MariaDB; Spark decodes on its executors, as it does with more rows."""
    for limit in ("_SMALL_BYTES", "_SMALL_BYTES_COLD"):
        monkeypatch.setattr(dblake.transform.reconcile.runner, limit, 0)
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
        assert sql_rows(paths, f"SELECT count(*) AS n FROM {T}_live") == [{"n": len(rig.backend.rows(T))}]
        maintain(spark, paths, MaintainConfig())
        rig.verify_tables()
        run_check(spark, paths, []).require_success()
    keys = s3.keys(warehouse.split("/")[2])
    assert "lake/shop/quality/docs/index.html" in keys
    assert not [key for key in keys if key.endswith((".tmp", ".lock"))], "renames or locks"
    assert SECRET_KEY not in str(spark.sparkContext.getConf().getAll())
