"""Capture as a process that is killed: at every failpoint, at random moments, and asked to end.

While it dies and comes back, applications write. Each row counts its own updates, so that a change lost or told twice
shows as a step that is not one. ``DBLAKE_FAULT_SECONDS`` lengthens the random part, ``DBLAKE_SEED`` repeats one.
PostgreSQL goes through all of it, MariaDB and MySQL through what is different there: a log that nobody keeps for
capture, and rows of which many come in one event.
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
from typing import Any

import pytest

from dblake.core.schema import Column, TableSchema
from tests.model.dblog import Event
from tests.support.backends import PostgresBackend
from tests.support.lake import Lake
from tests.support.mysql_backend import MysqlBackend, mysql_backend
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
    """A database with one busy table, and capture as a process of its own, with settings of its own."""

    def __init__(self, backend: PostgresBackend | MysqlBackend, folder: Path, **capture: float) -> None:
        self.backend, self.lake, self._folder = backend, Lake(folder), folder
        backend.create(TableSchema(T, (
            Column("id", "integer", False, 1), Column("n", "integer", False), Column("v", "text"),
        )))
        with backend.begin() as transaction:
            for row in range(1, ROWS + 1):
                transaction.insert(T, {"id": str(row), "n": "0", "v": "first"})
        backend.source("public.*")
        assert backend.settings is not None
        (folder / "shop.yaml").write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {
                "name": "shop", "host": backend.settings.host, "port": backend.settings.port,
                "user": backend.settings.user, "password": "${env:SHOP_PASSWORD}", "tls": "disable",
                "tables": ["public.*"], **_own_settings(backend),
            },
            "capture": {"commits_per_second": 20.0, "heartbeat_seconds": 1.0, **capture},
            # A rest after each chunk spreads a dump over several batches, so that progress is saved several times.
            "dump": {"chunk_size": 7, "delay": 0.03},
        }), encoding="utf-8")
        self._environment = os.environ | {
            "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": backend.settings.password,
        }
        if not backend.keeps_log_for_reader:
            # The log begins where capture first looks.
            self.catch_up()

    def connect(self) -> Any:
        """A connection of an application's, with a transaction open from its first statement on."""
        if isinstance(self.backend, MysqlBackend):
            return self.backend.server.connect("public", autocommit=False)
        connection = self.backend.database.connect()
        connection.autocommit = False
        return connection

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
            connection = self.connect()
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


def _own_settings(backend: PostgresBackend | MysqlBackend) -> dict[str, object]:
    """What only sources of this kind have."""
    if isinstance(backend, MysqlBackend):
        return {"type": backend.server.flavour}
    settings = backend.settings
    assert settings is not None
    return {
        "type": "postgres", "database": settings.database, "slot": settings.slot, "publication": settings.publication,
    }


@contextmanager
def rig_on(kind: str, request: pytest.FixtureRequest, folder: Path, **capture: float) -> Iterator[Rig]:
    """A rig on the run's server of that kind."""
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        with fresh_database(server) as database:
            postgres = PostgresBackend(database)
            yield Rig(postgres, folder, **capture)
            postgres.close()
    else:
        with mysql_backend(server) as mysql:
            yield Rig(mysql, folder, **capture)


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for all tests of this page: each goes on where the one before it left off."""
    with rig_on(request.param, request, tmp_path_factory.mktemp("dies")) as rig:
        yield rig


def test_the_failpoints_are_those_that_capture_has() -> None:
    assert FAILPOINTS == [
        "capture.acknowledged", "capture.before_acknowledge", "dump.before_progress", "dump.chunk_read",
        "dump.high_written", "dump.low_written", "dump.progress_saved", "landing.before_commit", "landing.committed",
    ]


@pytest.mark.parametrize(("rig", "failpoint"), [
    *(("postgres", name) for name in FAILPOINTS),
    *(("mariadb", name) for name in ("capture.before_acknowledge", "dump.low_written", "landing.committed")),
], indirect=["rig"])
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


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_killed_in_the_middle_of_a_transaction_of_20000_rows_it_goes_on_there(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # Some hundred rows come in one event, two events are one batch.
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
            _, said = dying.communicate(timeout=60)
            assert dying.returncode == -signal.SIGKILL, said
            assert rig.lake.reached.resume.landed is not None, "the transaction had landed whole"
            landed.append(sum(op in "cu" for op in (row["op"] for row in rig.lake.decoded())))
        assert 0 < landed[0] < landed[1] < landed[2] < 20_000
        rig.catch_up()
        changes = [(event.op, event.position.lsn) for event in rig.lake.reconciled()[0]]
        (lsn,) = {lsn for _, lsn in changes}
        assert changes == [("c", lsn)] * 10_000 + [("u", lsn)] * 10_000
        assert [row["last_in_txn"] for row in rig.lake.decoded()] == [False] * 19_999 + [True]
        here = {(row["id"],): row for row in rig.backend.rows(T) if row["v"] == "many"}
        assert rig.lake.state(T) == here
