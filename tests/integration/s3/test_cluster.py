"""A standalone Spark cluster whose workers share nothing with the driver but the store."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dblake.base.lake.layout import Paths
from tests.e2e.test_run import TABLES, Shop
from tests.e2e.test_spark_submit import Cluster
from tests.support.postgres import Database
from tests.support.s3 import S3_KEYS, S3Server, location, storage_section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_S3_JARS = sorted((Path(sys.prefix) / "jars-s3").glob("*.jar"))
_ROWS, _BYTES = 150_000, 1024
"""More than reconcile decodes in the driver."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers, each with its own folders for work, temporary files and home, and without the store's keys."""
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, workers=2)
        cluster.start(stack)
        yield cluster


def tasks_by_executor(folder: Path) -> Counter[str]:
    """Return how many tasks succeeded on each executor, from Spark's event log."""
    (log,) = (file for file in folder.iterdir() if file.is_file())
    events = map(json.loads, log.read_text().splitlines())
    return Counter(
        event["Task Info"]["Executor ID"] for event in events
        if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success"
    )


def test_jobs_on_cluster_share_only_the_store(
    cluster: Cluster, s3: S3Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of reconcile and of state run on both workers, which have neither the configuration nor its secrets."""
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    warehouse = location(s3)
    shop = Shop(database, tmp_path)
    configuration = json.loads(shop.conf.read_text())
    configuration |= {"warehouse": warehouse, "storage": storage_section(warehouse.storage)}
    shop.conf.write_text(json.dumps(configuration))
    shop.environment, shop.paths = shop.environment | S3_KEYS, Paths(warehouse, "shop")
    shop.write(1, 50)
    database.run(
        f"INSERT INTO t0 SELECT n, repeat(md5(n::text), {_BYTES // 32}) FROM generate_series(51, {_ROWS}) n"
    )
    shop.run("capture", "--until-caught-up")
    assert "add all jars of the environment's folder jars-s3" in cluster.submit(shop.conf, job="reconcile", code=78)
    for job in ("reconcile", "state"):
        log = tmp_path / f"events-{job}"
        log.mkdir()
        settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri(),
                    "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false"}
        cluster.submit(shop.conf, job=job, jars=_S3_JARS, settings=settings)
        tasks = tasks_by_executor(log)
        assert len(tasks) == 2 and min(tasks.values()) > 0, (job, tasks)
    assert [shop.count(table) for table in TABLES] == [_ROWS, *[50] * 9]
    for work in cluster.work_folders:
        assert len(list(work.glob("app-*"))) >= 2, "no executor ran on this worker"
    assert not list(tmp_path.rglob("*.parquet")), "something wrote a table to the disk"
