"""Commits by Spark to tables on S3: the store decides between two writers, and no answer that is lost matters."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from pyspark.sql import SparkSession

from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import Location, join
from dblake.base.lake.tables import create_table, open_table
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.spark.storage import require_storage
from dblake.transform.state.run import run_state
from tests.support.effort import EFFORT, with_effort
from tests.support.rig import rig_on
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import COMMIT, Fault, Rule, S3Proxy
from tests.support.spark_committer import (
    ORDINARY_LOG_STORE,
    OWN_LOG_STORE,
    SparkCommitter,
    commit_number,
    committed_numbers,
)

ROWS = pa.schema([("n", pa.int64())])
_DELTA_RS = 10_000
"""The numbers of delta-rs begin here."""
_LATENCY_SECONDS = 0.005
"""Of the store: between a check and a write that are two requests, another commit then fits."""


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def table(s3: S3Server) -> Location:
    table = join(location(s3), "t")
    create_table(table, ROWS)
    assert isinstance(table, Location)
    return table


def commit_by_delta_rs(table: str, count: int) -> None:
    """Commit as many numbers."""
    opened = open_table(table)
    for number in range(_DELTA_RS, _DELTA_RS + count):
        properties = CommitProperties(max_commit_retries=1000, app_transactions=[Transaction(str(number), 1)])
        opened.create_write_transaction([], "append", opened.schema(), commit_properties=properties)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_contested_commits_of_spark_and_delta_rs(spark: SparkSession, table: Location) -> None:
    """None is lost."""
    commits = 15 * EFFORT, 35 * EFFORT
    require_storage(spark, table)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(commit_by_delta_rs, table, commits[1])
        for number in range(commits[0]):
            commit_number(spark, table, number)
        other.result()
    assert committed_numbers(table) == [*range(commits[0]), *range(_DELTA_RS, _DELTA_RS + commits[1])]
    assert open_table(table).version() == sum(commits)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("log_store", "commits", "entries"),
    [
        *with_effort(pytest.param(OWN_LOG_STORE, 10 * EFFORT, False, id="own-transactions")),
        pytest.param(OWN_LOG_STORE, 100 * EFFORT, True, id="own-entries"),
        pytest.param(ORDINARY_LOG_STORE, 200, True, id="ordinary-entries"),
    ],
)
def test_contested_commits_of_two_spark_drivers(
    proxy: S3Proxy, table: Location, log_store: str, commits: int, entries: bool
) -> None:
    """None is lost by our log store. By Delta's ordinary one some are, so the test can fail."""
    proxy.set(latency_seconds=_LATENCY_SECONDS)
    with SparkCommitter(proxy.port, log_store) as first, SparkCommitter(proxy.port, log_store) as second:
        drivers = {first: range(commits), second: range(commits, 2 * commits)}
        assert [driver.reported() for driver in drivers] == [[], []], "not ready"
        for driver, numbers in drivers.items():
            driver.start_commits(table, numbers, entries=entries)
        reported = [number for driver in drivers for number in driver.reported()]
    if log_store == OWN_LOG_STORE:
        assert reported == list(range(2 * commits))
        assert committed_numbers(table) == reported
        assert open_table(table).version() == 2 * commits
    else:
        assert set(reported) - set(committed_numbers(table)), "no commit was lost"


@pytest.mark.slow
def test_driver_frozen_across_its_commit_is_rejected(proxy: S3Proxy, table: Location) -> None:
    """The store answers 412 for the version that another has committed; Spark commits the next one."""
    with SparkCommitter(proxy.port) as driver:
        driver.reported()
        driver.start_commits(table, [1])
        assert driver.reported() == [1]
        proxy.take()
        proxy.set(Rule(Fault.LATE, COMMIT, times=1))
        driver.start_commits(table, [2])
        wait_for_fault(proxy)
        tried = tried_commits(proxy)
        driver.freeze()
        commit_by_delta_rs(table, 1)
        contested = open_table(table).version()
        proxy.release()
        driver.thaw()
        assert driver.reported() == [2]
    assert committed_numbers(table) == [1, 2, _DELTA_RS]
    assert open_table(table).version() == contested + 1 == 3
    assert tried + tried_commits(proxy) == [f"{contested:020}.json", f"{contested + 1:020}.json"]


@pytest.mark.slow
def test_reconcile_frozen_across_its_commit_ends_with_75(
    s3: S3Server, proxy: S3Proxy, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Another reconcile has committed the same batch in between: no event is there twice."""
    warehouse = location(s3, port=proxy.port)
    with rig_on("postgres", request, tmp_path, warehouse=warehouse) as rig:
        for seed in (1, 2):
            with rig.load(seed=seed):
                rig.catch_up()
            rig.catch_up()
            if seed == 1:
                rig.run("reconcile")
        proxy.set(Rule(Fault.LATE, COMMIT.replace("/_delta_log", "/events/_delta_log"), times=1))
        frozen = rig.start(job="reconcile")
        wait_for_fault(proxy)
        os.killpg(frozen.pid, signal.SIGSTOP)
        direct = Paths(Location(warehouse, storage(s3.port)), "shop")
        assert reconcile_once(no_spark, direct) == rig.newest_batch()
        proxy.release()
        os.killpg(frozen.pid, signal.SIGCONT)
        _, log = frozen.communicate(timeout=120)
        assert (frozen.returncode, "committed to events at the same time" in log) == (75, True), log
        run_state(no_spark, direct)
        assert rig.verify_tables() > 0


def tried_commits(proxy: S3Proxy) -> list[str]:
    """Return the log entries that were written, or rejected, since the last call."""
    return [request.rpartition("/")[2] for request in proxy.take() if re.search(COMMIT, request)]


def no_spark() -> NoReturn:
    """Stand for the session where none is needed."""
    raise AssertionError("Spark is not needed for this")


def wait_for_fault(proxy: S3Proxy) -> None:
    """Wait until the proxy has made a request fail, or holds one."""
    deadline = time.monotonic() + 60
    while not proxy.fault_counts():
        assert time.monotonic() < deadline, "no request came"
        time.sleep(0.05)


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.FAILED_ANSWER, Fault.SLOW_DOWN])
def test_spark_commit_with_fault_is_done_once(
    spark: SparkSession, proxy: S3Proxy, table: Location, fault: Fault
) -> None:
    through_proxy = Location(table, storage(proxy.port))
    require_storage(spark, through_proxy)
    proxy.set(Rule(fault, COMMIT, times=1))
    rows = spark.range(1, 2, numPartitions=1).withColumnRenamed("id", "n")
    rows.write.format("delta").mode("append").save(through_proxy)
    assert proxy.fault_counts() == {fault: 1}
    assert (open_table(table).version(), open_table(table).count()) == (1, 1)
