"""Commits to S3: of two at once the store rejects one, and a lost answer neither fails nor doubles a commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from dblake.base.core.errors import Fenced, LandingError, TableUnavailable
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.commits import confirmed_commit
from dblake.base.lake.frontier import Frontier, append_frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import commit_rows, newest_batch
from dblake.base.lake.storage import Location, join
from dblake.base.lake.tables import create_table, find_table, has_table, open_table
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from tests.support.effort import EFFORT
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import COMMIT, Fault, Rule, S3Proxy

ROWS = pa.schema([("n", pa.int64())])
LOST = (Fault.LOST_ANSWER, Fault.FAILED_ANSWER)
UNDONE = (Fault.RESET, Fault.SLOW_DOWN)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def warehouse(s3: S3Server, proxy: S3Proxy) -> Location:
    return location(s3, port=proxy.port)


def once(fault: Fault) -> Rule:
    """Return the rule that the next commit fails."""
    return Rule(fault, COMMIT, times=1)


def test_server_decides_conditional_writes_one_at_a_time(s3: S3Server) -> None:
    """The tests rest on it: moto alone checks first and writes then."""
    bucket = s3.new_bucket()
    with ThreadPoolExecutor(8) as pool:
        for key in range(5):
            put = [pool.submit(s3.request, "PUT", f"/{bucket}/{key}", b"x", If_None_Match="*") for _ in range(8)]
            assert sorted(one.result()[0] for one in put) == [200, *[412] * 7]


@pytest.mark.parametrize(
    ("is_conditional", "appends"), [
        (True, 25), (False, 25), pytest.param(True, 50 * EFFORT, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_contested_appends_lose_none_by_condition(
    proxy: S3Proxy, warehouse: Location, is_conditional: bool, appends: int
) -> None:
    """Without the condition some are lost: so the test can fail, and the store must honour it."""
    table = join(warehouse, "t")
    create_table(table, ROWS)
    proxy.set(*([] if is_conditional else [Rule(Fault.IGNORED_CONDITION)]))

    def append(writer: int) -> None:
        opened = open_table(table)
        for number in range(appends):
            row = pa.table({"n": [1000 * writer + number]}, schema=ROWS)
            write_deltalake(opened, row, mode="append", commit_properties=CommitProperties(max_commit_retries=1000))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(2)))
    rows = sorted(open_table(table).to_pyarrow_table()["n"].to_pylist())
    assert (rows == [1000 * writer + number for writer in range(2) for number in range(appends)]) is is_conditional


@pytest.mark.parametrize("fault", [*LOST, *UNDONE])
def test_landing_commit_with_fault_lands_once(proxy: S3Proxy, warehouse: Location, fault: Fault) -> None:
    landing = Landing(join(warehouse, "landing"), "shop")
    landing.commit(landed(1), reached(1))
    proxy.set(once(fault))
    landing.commit(landed(2), reached(2))
    landing.commit(landed(3), reached(3))
    assert proxy.fault_counts() == {fault: 1}
    assert batches(landing) == [1, 2, 3]
    assert Landing(join(warehouse, "landing"), "shop").reached == reached(3)


def test_landing_commit_fences_after_commit_of_other_capture(
    s3: S3Server, proxy: S3Proxy, warehouse: Location
) -> None:
    """Two captures land the same batch: the second takes the other's commit for its own in no case."""
    first, second = (Landing(join(warehouse, "landing"), "shop") for _ in range(2))
    first.commit(landed(1), reached(1))
    with pytest.raises(Fenced, match="another capture"):
        second.commit(landed(1), reached(1))
    third = Landing(join(warehouse, "landing"), "shop")
    proxy.set(Rule(Fault.HELD, COMMIT, times=1))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(third.commit, landed(2), reached(2))
        while not proxy.fault_counts():
            time.sleep(0.05)
        direct = Location(warehouse, storage(s3.port))
        Landing(join(direct, "landing"), "shop").commit(landed(2), reached(2))
        proxy.release()
        with pytest.raises(Fenced, match="another capture"):
            held.result(timeout=60)
    assert batches(first) == [1, 2]


def test_landing_in_missing_bucket_is_a_configuration_error(s3: S3Server) -> None:
    with pytest.raises(LandingError, match="bucket of the warehouse does not exist") as caught:
        Landing(join(Location("s3://no-such-bucket/lake", location(s3).storage), "landing"), "shop")
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("fault", LOST)
def test_commits_of_other_tables_with_lost_answer_are_done_once(
    proxy: S3Proxy, warehouse: Location, fault: Fault
) -> None:
    table = join(warehouse, "t")
    create_table(table, ROWS)
    proxy.set(once(fault))
    commit_rows(table, "reconcile/shop", 7, pa.table({"n": [1]}, schema=ROWS))
    assert newest_batch(table, "reconcile/shop") == 7
    proxy.set(once(fault))
    commit_rows(table, "reconcile/shop", 8, None)
    assert (newest_batch(table, "reconcile/shop"), open_table(table).count()) == (8, 1)
    paths = Paths(warehouse, "shop")
    proxy.set(once(fault))
    append_frontier(paths, Frontier(3, Position(1, 2, 3)))
    assert read_frontier(paths).batch == 3
    assert open_table(paths.frontier).count() == 1


def test_commit_that_another_made_is_not_taken_for_own(warehouse: Location) -> None:
    table = join(warehouse, "t")
    create_table(table, ROWS)
    with pytest.raises(CommitFailedError), confirmed_commit(table):
        commit_rows(table, "reconcile/shop", 7, None)
        raise CommitFailedError
    with pytest.raises(TableUnavailable):
        contend(table)


def contend(table: str) -> None:
    """Commit the same batch from a version of the table that does not have it."""
    stale = open_table(table, version=0)
    try:
        with confirmed_commit(table) as metadata:
            stale.create_write_transaction(
                [], "append", stale.schema(),
                commit_properties=CommitProperties(metadata, app_transactions=[Transaction("reconcile/shop", 7)]),
            )
    except CommitFailedError as error:
        raise TableUnavailable("rejected") from error


def test_find_table_without_table_or_bucket(s3: S3Server, warehouse: Location) -> None:
    assert find_table(join(warehouse, "none")) is None
    assert not has_table(join(warehouse, "none"))


def landed(batch: int) -> pa.Table:
    row = dict.fromkeys(LANDING.names) | {
        "batch": batch, "lease_epoch": 1, "incarnation": 1, "lsn": batch, "seq": 0, "kind": "heartbeat",
        "last_in_txn": True, "landed_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return pa.Table.from_pylist([row], schema=LANDING)


def reached(batch: int) -> Reached:
    at = Position(1, batch, 0)
    return Reached(batch, 1, ServerIdentity("s", "1"), ResumePoint(1, str(batch), at))


def batches(landing: Landing) -> list[int]:
    found: list[int] = open_table(landing._path).to_pyarrow_table(columns=["batch"])["batch"].to_pylist()
    return sorted(found)
