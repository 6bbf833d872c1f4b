"""The committer: one commit at a time, in order, to a real landing table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.errors import Fenced, TableUnavailable
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import COMMITS_PER_OPENING
from dblake.base.lake.tables import open_table
from dblake.ingest.capture.batch import Batch
from dblake.ingest.capture.commits import Committer
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached

_MAINTENANCE = """
import sys
from dblake.base.lake.locks import commit_lock
with commit_lock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.readline()
"""
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "lib")}
SERVER = ServerIdentity("a server", "1")


def batch(number: int) -> Batch:
    row = {"batch": number, "lease_epoch": 1, "incarnation": 1, "lsn": number, "seq": 0, "kind": "heartbeat"}
    rows = pa.Table.from_pylist([row], schema=LANDING)
    return Batch(number, rows, ResumePoint(1, str(number), Position(1, number)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "landing")


def test_returned_batch_has_landed(path: str) -> None:
    commits = Committer(Landing(path, "shop"), lease_epoch=4, server=SERVER, per_second=1000)
    assert commits.take_landed() is None and not commits.is_busy
    commits.submit(batch(1))
    assert commits.is_busy
    landed = commits.take_landed(wait_seconds=20)
    assert landed is not None and landed.number == 1
    assert not commits.is_busy
    assert Landing(path, "shop").reached == Reached(1, 4, SERVER, ResumePoint(1, "1", Position(1, 1)))
    commits.close()


def test_second_commit_at_a_time_is_an_error(path: str) -> None:
    commits = Committer(Landing(path, "shop"), lease_epoch=1, server=SERVER, per_second=1000)
    commits.submit(batch(1))
    with pytest.raises(AssertionError, match="one commit at a time"):
        commits.submit(batch(2))
    commits.close()


def test_commit_waits_for_maintenance_lock(path: str) -> None:
    commits = Committer(Landing(path, "shop"), lease_epoch=1, server=SERVER, per_second=1000)
    # Another process: on a local disk its commit could overwrite one that is made at the same time.
    maintenance = subprocess.Popen(
        [sys.executable, "-c", _MAINTENANCE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT
    )
    assert maintenance.stdout is not None and maintenance.stdout.readline() == b"locked\n"
    commits.submit(batch(1))
    assert commits.take_landed(wait_seconds=0.5) is None
    maintenance.communicate(b"\n")
    assert commits.take_landed(wait_seconds=20) is not None
    commits.close()


def test_commit_ignores_shared_lock_of_frozen_capture(path: str) -> None:
    commits = Committer(Landing(path, "shop"), lease_epoch=1, server=SERVER, per_second=1000)
    with commit_lock(path, shared=True):
        commits.submit(batch(1))
        assert commits.take_landed(wait_seconds=20) is not None
    commits.close()


def test_commit_lock_held_too_long_raises_table_unavailable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblake.base.lake.locks._LOCK_SECONDS", 0.3)
    with commit_lock(path), pytest.raises(TableUnavailable, match="locked by another job"), commit_lock(path):
        pass
    with commit_lock(path):
        pass


def test_commit_lock_is_reentrant_for_object_stores() -> None:
    with commit_lock("s3://bucket/landing"), commit_lock("s3://bucket/landing"):
        pass


def test_commit_rate_delays_next_commit(path: str) -> None:
    commits = Committer(Landing(path, "shop"), lease_epoch=1, server=SERVER, per_second=0.01)
    assert commits.due_in == 0
    commits.submit(batch(1))
    assert 90 < commits.due_in <= 100
    commits.close()


def test_failed_commit_raises_in_take_landed(path: str) -> None:
    mine = Committer(Landing(path, "shop"), lease_epoch=1, server=SERVER, per_second=1000)
    Landing(path, "shop").commit(batch(1).rows, Reached(1, 2, SERVER, ResumePoint(1, "1")))
    mine.submit(batch(1))
    with pytest.raises(Fenced, match="batch 1 was rejected"):
        mine.take_landed(wait_seconds=20)
    reached = Landing(path, "shop").reached
    assert reached is not None and reached.lease_epoch == 2
    mine.close()


def test_landing_opened_again_between_commits_fences_after_other_capture(path: str) -> None:
    mine = Landing(path, "shop")
    for number in range(1, COMMITS_PER_OPENING + 1):
        mine.commit(batch(number).rows, reached(number, lease_epoch=1))
    other = Landing(path, "shop")
    other.commit(batch(number + 1).rows, reached(number + 1, lease_epoch=2))
    # This commit opens the table again, at a version that has the other's batch: Delta itself would accept it.
    with pytest.raises(Fenced, match=f"batch {number + 1} was rejected"):
        mine.commit(batch(number + 1).rows, reached(number + 1, lease_epoch=1))
    assert Landing(path, "shop").reached == reached(number + 1, lease_epoch=2)


def test_landing_commits_do_not_accumulate_in_memory(path: str) -> None:
    landing = Landing(path, "shop")
    tables = dict[int, object]()
    for number in range(1, 3 * COMMITS_PER_OPENING):
        landing.commit(batch(number).rows, reached(number, lease_epoch=1))
        tables[id(landing._table)] = landing._table
    assert len(tables) == 3
    assert sorted(open_table(path).to_pyarrow_table()["batch"].to_pylist()) == list(range(1, number + 1))


def reached(number: int, *, lease_epoch: int) -> Reached:
    return Reached(number, lease_epoch, SERVER, ResumePoint(1, str(number), Position(1, number)))


def test_landing_commit_after_maintenance_deleted_rows_lands(path: str) -> None:
    landing = Landing(path, "shop")
    for number in (1, 2, 3):
        landing.commit(batch(number).rows, reached(number, lease_epoch=1))
    # Delta rejects an append to the version before: rows that it "read" are gone.
    with commit_lock(path):
        open_table(path).delete("batch <= 2")
    landing.commit(batch(4).rows, reached(4, lease_epoch=1))
    landing.commit(batch(5).rows, reached(5, lease_epoch=1))
    assert sorted(open_table(path).to_pyarrow_table()["batch"].to_pylist()) == [3, 4, 5]
