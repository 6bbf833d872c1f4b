"""Capture as a process that is killed: at every failpoint, at random moments, and asked to end.

While it dies and comes back, applications write. Each row counts its own updates, so that a change lost or told twice
shows as a step that is not one. ``DBLAKE_FAULT_SECONDS`` lengthens the random part, ``DBLAKE_SEED`` repeats one.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dblake.core.schema import Column, TableSchema
from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.model.dblog import Event
from tests.support.backends import PostgresBackend
from tests.support.lake import Lake
from tests.support.postgres import fresh_database

HOME = Path(__file__).parents[2]
T = "public.t"
ROWS = 60
SECONDS = float(os.environ.get("DBLAKE_FAULT_SECONDS", "30"))

FAILPOINTS = sorted(
    name
    for folder in ("capture", "landing")
    for file in (HOME / "lib/dblake" / folder).glob("*.py")
    for name in re.findall(r'failpoint\("([\w.]+)"\)', file.read_text(encoding="utf-8"))
)


class Rig:
    """A database with one busy table, and capture as a process of its own."""

    def __init__(self, backend: PostgresBackend, folder: Path) -> None:
        self.backend, self.lake, self._folder = backend, Lake(folder), folder
        backend.create(TableSchema(T, (
            Column("id", "integer", False, 1), Column("n", "integer", False), Column("v", "text"),
        )))
        backend.run(f"INSERT INTO t SELECT id, 0, 'first' FROM generate_series(1, {ROWS}) id")
        backend.source("public.*")
        settings = backend.settings
        assert settings is not None
        (folder / "shop.yaml").write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {
                "name": "shop", "type": "postgres", "host": settings.host, "port": settings.port,
                "database": settings.database, "user": settings.user, "password": "${env:SHOP_PASSWORD}",
                "tls": "disable", "tables": ["public.*"], "slot": settings.slot, "publication": settings.publication,
            },
            "capture": {"commits_per_second": 20.0, "heartbeat_seconds": 1.0},
            # A rest after each chunk spreads a dump over several batches, so that progress is saved several times.
            "dump": {"chunk_size": 7, "delay": 0.03},
        }), encoding="utf-8")
        self._environment = os.environ | {
            "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": settings.password,
        }

    def start(self, *arguments: str, failpoint: str = "") -> subprocess.Popen[str]:
        """The capture job."""
        return subprocess.Popen(
            [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(self._folder / "shop.yaml"), *arguments],
            env=self._environment | {"DBLAKE_FAILPOINT": failpoint}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )

    def catch_up(self) -> None:
        """Capture until all there is has landed, dumps included."""
        process = self.start("--until-caught-up")
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said

    @contextmanager
    def load(self, seed: int) -> Iterator[None]:
        """Transactions of one to three rows, for as long as the block lasts."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def write() -> None:
            dice = random.Random(seed)
            connection = self.backend.database.connect()
            connection.autocommit = False
            try:
                with connection.cursor() as cursor:
                    while not stop.wait(0.01):
                        for row in sorted(dice.sample(range(1, 2 * ROWS), dice.randint(1, 3))):
                            cursor.execute("UPDATE t SET n = n + 1 WHERE id = %s", (row,))
                            if not cursor.rowcount:
                                cursor.execute("INSERT INTO t VALUES (%s, 0, 'later')", (row,))
                            elif dice.random() < 0.1:
                                cursor.execute("DELETE FROM t WHERE id = %s", (row,))
                        connection.commit()
            except BaseException as error:  # noqa: BLE001 - told by the thread that waits
                failed.append(error)
            finally:
                connection.close()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
        assert failed == []

    def verify(self) -> None:
        """Nothing was lost, nothing was told twice, and the rows are the source's."""
        events, ledger = self.lake.reconciled()
        assert wrong_steps(events) == []
        assert self.lake.state(T) == {(str(row["id"]),): row for row in self.backend.rows(T)}
        batches = set(self.lake.landing()["batch"].to_pylist())
        assert batches == set(range(1, max(batches) + 1))
        assert any(line.status == "closed" and line.emitted for line in ledger)


def wrong_steps(events: list[Event]) -> list[str]:
    """Where a row's counter does not go on by one, or a dumped row is not what the log had come to."""
    counters: dict[str, int | None] = {str(row): 0 for row in range(1, ROWS + 1)}
    wrong = []
    for event in events:
        (key,) = event.key or ("?",)
        before = counters.get(key)
        now = int((event.after or {}).get("n") or 0)
        right = {
            "c": before is None and now == 0, "u": before is not None and now == before + 1,
            "d": before is not None, "r": before is not None and now == before,
        }
        if not right.get(event.op):
            wrong.append(f"{event.op} of {key} at {event.position}: {before} then {now}")
        counters[key] = None if event.op == "d" else now
    return wrong


@pytest.fixture(scope="module")
def rig(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for all tests of this page: each goes on where the one before it left off."""
    with fresh_database(postgres) as database:
        backend = PostgresBackend(database)
        yield Rig(backend, tmp_path_factory.mktemp("dies"))
        backend.close()


def test_the_failpoints_are_those_that_capture_has() -> None:
    assert FAILPOINTS == [
        "capture.acknowledged", "capture.before_acknowledge", "dump.before_progress", "dump.chunk_read",
        "dump.high_written", "dump.low_written", "dump.progress_saved", "landing.before_commit", "landing.committed",
    ]


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_killed_at_a_failpoint_it_goes_on_as_if_nothing_had_been(rig: Rig, failpoint: str) -> None:
    rig.lake.dump(T)
    with rig.load(seed=FAILPOINTS.index(failpoint)):
        dying = rig.start(failpoint=f"{failpoint}:3")
        _, said = dying.communicate(timeout=60)
        assert dying.returncode == -signal.SIGKILL, said
    rig.catch_up()
    assert {dump["state"] for dump in rig.lake.dumps()} == {"done"}
    rig.verify()


def test_killed_at_random_moments_it_loses_nothing_and_repeats_nothing(rig: Rig) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", str(time.time_ns() % 100_000)))
    print(f"DBLAKE_SEED={seed}")
    dice = random.Random(seed)
    deadline = time.monotonic() + SECONDS
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


def test_asked_to_end_it_ends_at_a_transactions_end(rig: Rig) -> None:
    rig.lake.dump(T)
    with rig.load(seed=1):
        before = rig.lake.open_landing().reached
        process = rig.start()
        deadline = time.monotonic() + 60
        while (now := rig.lake.open_landing().reached) is None or (before and now.batch < before.batch + 5):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert rig.lake.reached.resume.landed is None
    assert [row["last_in_txn"] for row in rig.lake.decoded() if row["op"] in "cud"][-1]
    rig.catch_up()
    rig.verify()
