"""Capture as a process that is killed, at every failpoint and at random moments, and one that is stopped.

Applications write all the time. Each row counts its own changes, so a change that is lost or repeated shows as a wrong
step. ``DBLAKE_EFFORT`` lengthens the random part, ``DBLAKE_SEED`` repeats one. PostgreSQL runs all tests,
MariaDB and MySQL those of what differs there: a log that is not retained for capture, and events of many rows.

The short suite kills at ``landing.committed`` on PostgreSQL and at ``dump.low_written`` on MariaDB.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import EFFORT, choose_seed
from tests.support.rig import HOME, Rig, T, rig_on

SECONDS = 15.0 * EFFORT

FAILPOINTS = sorted(
    name
    for folder in ("ingest/capture", "landing")
    for file in (HOME / "lib/dblake" / folder).glob("*.py")
    for name in re.findall(r'failpoint\("([\w.]+)"\)', file.read_text(encoding="utf-8"))
)


_SHORT = {("postgres", "landing.committed"), ("mariadb", "dump.low_written")}
_KILLS = [
    *(("postgres", name) for name in FAILPOINTS),
    *(("mariadb", name) for name in ("capture.before_acknowledge", "dump.low_written", "landing.committed")),
]


@pytest.fixture(scope="module", params=["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One rig for all tests of the module: each test starts where the one before it ended."""
    with rig_on(request.param, request, tmp_path_factory.mktemp("dies")) as rig:
        yield rig


def test_failpoints_are_found_in_capture() -> None:
    assert FAILPOINTS == [
        "capture.acknowledged", "capture.before_acknowledge", "dump.before_progress", "dump.chunk_read",
        "dump.high_written", "dump.low_written", "dump.progress_saved", "landing.before_commit", "landing.committed",
    ]


@pytest.mark.parametrize(("rig", "failpoint"), [
    pytest.param(*kill, marks=() if kill in _SHORT else pytest.mark.slow) for kill in _KILLS
], indirect=["rig"])
def test_capture_killed_at_failpoint_resumes_exactly(rig: Rig, failpoint: str) -> None:
    rig.lake.dump(T)
    with rig.load(seed=FAILPOINTS.index(failpoint)):
        dying = rig.start(failpoint=f"{failpoint}:3")
        _, log = dying.communicate(timeout=60)
        assert dying.returncode == -signal.SIGKILL, log
    rig.catch_up()
    assert {dump["state"] for dump in rig.lake.dumps()} == {"done"}
    rig.verify()


@pytest.mark.slow
def test_capture_killed_at_random_resumes_exactly(rig: Rig) -> None:
    seed = choose_seed()
    dice = random.Random(seed)
    deadline = time.monotonic() + (SECONDS if rig.backend.keeps_log_for_reader else SECONDS / 2)
    with rig.load(seed):
        while time.monotonic() < deadline:
            rig.lake.dump(T)
            process = rig.start()
            time.sleep(dice.uniform(1.5, 5.0))
            assert process.poll() is None, process.communicate()[1]
            process.kill()
            process.communicate()
    rig.catch_up()
    assert {dump["state"] for dump in rig.lake.dumps()} == {"done"}
    rig.verify()


def test_stopped_capture_ends_at_transaction_end(rig: Rig) -> None:
    rig.lake.dump(T)
    with rig.load(seed=1):
        before = rig.lake.open_landing().reached
        process = rig.start()
        deadline = time.monotonic() + 60
        while (now := rig.lake.open_landing().reached) is None or (before and now.batch < before.batch + 5):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
    assert rig.lake.reached.resume.landed is None
    assert [row["last_in_txn"] for row in rig.lake.decoded() if row["op"] in "cud"][-1]
    rig.catch_up()
    rig.verify()


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def test_capture_killed_inside_large_transaction_resumes(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # One event has some hundred rows; a batch has two events.
    with rig_on(kind, request, tmp_path, max_rows=2) as rig:
        connection = rig.connect()
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO t WITH RECURSIVE s AS (SELECT 1001 id UNION ALL SELECT id + 1 FROM s WHERE id < 2000)"
                " SELECT a.id * 10 + b.id - 1001, 0, 'many' FROM s a JOIN s b ON b.id <= 1010"
            )
            cursor.execute("UPDATE t SET n = n + 1 WHERE v = 'many'")
            assert cursor.rowcount == 10_000
        connection.commit()
        connection.close()
        landed = []
        for failpoint in ("landing.committed:4", "landing.before_commit:7", "capture.before_acknowledge:5"):
            dying = rig.start(failpoint=failpoint)
            _, log = dying.communicate(timeout=60)
            assert dying.returncode == -signal.SIGKILL, log
            assert rig.lake.reached.resume.landed is not None, "the transaction has landed whole"
            landed.append(sum(op in "cu" for op in (row["op"] for row in rig.lake.decoded())))
        assert 0 < landed[0] < landed[1] < landed[2] < 20_000
        rig.catch_up()
        changes = [(event.op, event.position.lsn) for event in rig.lake.reconciled()[0]]
        (lsn,) = {lsn for _, lsn in changes}
        assert changes == [("c", lsn)] * 10_000 + [("u", lsn)] * 10_000
        assert [row["last_in_txn"] for row in rig.lake.decoded()] == [False] * 19_999 + [True]
        here = {(row["id"],): row for row in rig.backend.rows(T) if row["v"] == "many"}
        assert rig.lake.state(T) == here
