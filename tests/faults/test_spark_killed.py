"""Reconcile and state killed between two of their tables, while the database is written to and dumped.

The next run completes the work. The stress oracle kills at all other moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.support.postgres import Database

HOME = Path(__file__).parents[2]
_CONF = """
warehouse: ./warehouse
progress: file:./progress
source:
  name: shop
  type: postgres
  host: 127.0.0.1
  port: {port}
  database: {database}
  user: capture_{database}
  password: ${{env:DBLAKE_TEST_PASSWORD}}
  tls: disable
  tables: ["public.*"]
dump: {{chunk_size: 40}}
reconcile: {{max_bytes_per_trigger: 64k}}
state: {{batches_per_step: 3}}
"""
_ENVIRONMENT = {
    **os.environ, "PYTHONPATH": f"{HOME / 'lib'}{os.pathsep}{HOME}", "DBLAKE_TEST_PASSWORD": "capture",
}


class Pipeline:
    """The jobs over one configuration, as processes."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.conf = folder / "shop.yaml"
        self.conf.write_text(_CONF.format(port=database.server.port, database=database.name))
        self.lake = folder / "warehouse" / "shop"
        self._log = folder / "log"

    def start(self, job: str, *arguments: str, failpoint: str = "") -> subprocess.Popen[str]:
        """Start a job in its own process group, so that its JVM dies with it."""
        return subprocess.Popen(
            [sys.executable, str(HOME / "jobs" / f"{job}.py"), "--conf", str(self.conf), *arguments]
            if job != "dump" else
            [sys.executable, str(HOME / "jobs" / "dump.py"), arguments[0], "--conf", str(self.conf), *arguments[1:]],
            env={**_ENVIRONMENT, "DBLAKE_FAILPOINT": failpoint}, text=True,
            stdout=self._log.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
        )

    def run(self, job: str, *arguments: str) -> None:
        """Run a job and require that it ends with 0."""
        assert self._wait(self.start(job, *arguments), 600) == 0, self._log.read_text()

    def killed_at(self, job: str, failpoint: str) -> None:
        """Run a job that must die at a failpoint."""
        code = self._wait(self.start(job, failpoint=failpoint), 600)
        assert code == -signal.SIGKILL, self._log.read_text()

    @staticmethod
    def _wait(process: subprocess.Popen[str], seconds: float) -> int:
        """Return the exit code; kill the job after ``seconds``, and whatever a dead process left running."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        kill(process)
        return process.wait()


def kill(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to the process and all it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def pipeline(tmp_path: Path, database: Database) -> Pipeline:
    """Two tables whose rows count their own updates, ready to be captured."""
    database.run(
        "CREATE TABLE counter (id int PRIMARY KEY, steps int NOT NULL, note text)",
        "CREATE TABLE pair (a text, b int, steps int NOT NULL, PRIMARY KEY (a, b))",
        "INSERT INTO counter SELECT n, 0, repeat('x', n % 50) FROM generate_series(1, 400) n",
        "INSERT INTO pair SELECT 'k' || n % 7, n, 0 FROM generate_series(1, 200) n",
    )
    settings = PostgresSettings(
        "shop", "127.0.0.1", database.server.port, database.name, f"capture_{database.name}", "capture",
        ("public.*",), tls="disable",
    )
    run_init(settings, database.server.user, database.server.password)
    return Pipeline(tmp_path, database)


@contextmanager
def writes(database: Database) -> Iterator[None]:
    """Write inside the block: each update is one step; some rows are deleted and inserted again."""
    stop = threading.Event()
    dice = random.Random(7)

    def write() -> None:
        connection = database.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                row = dice.randint(1, 400)
                cursor.execute("UPDATE counter SET steps = steps + 1 WHERE id = %s", (row,))
                cursor.execute("UPDATE pair SET steps = steps + 1 WHERE b = %s", (dice.randint(1, 200),))
                if row % 20 == 0:
                    cursor.execute("DELETE FROM counter WHERE id = %s", (row,))
                    cursor.execute("INSERT INTO counter VALUES (%s, 0, 'back')", (row,))
                time.sleep(0.002)
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_reconcile_and_state_killed_under_load_are_exact(pipeline: Pipeline, database: Database) -> None:
    with writes(database):
        pipeline.run("dump", "start", "--all")
        pipeline.run("capture", "--seconds", "3")
        pipeline.killed_at("reconcile", "reconcile.schemas_appended")
        pipeline.killed_at("reconcile", "reconcile.task_written")
        pipeline.killed_at("reconcile", "reconcile.events_written")
        pipeline.killed_at("reconcile", "reconcile.events_appended")
        pipeline.run("capture", "--seconds", "2")
        pipeline.killed_at("state", "state.merged")
        pipeline.killed_at("reconcile", "reconcile.ledger_appended")
    pipeline.run("capture", "--until-caught-up")
    pipeline.run("reconcile")
    pipeline.run("state")

    assert_every_step_once(pipeline)
    for table, key, columns in (("counter", "id", "id, steps, note"), ("pair", "a, b", "a, b, steps")):
        source = database.rows(f"SELECT {columns} FROM {table} ORDER BY {key}")
        state = QueryBuilder().register("state", DeltaTable(str(pipeline.lake / "state" / "public" / table)))
        rows = pa.table(state.execute(f"SELECT {columns} FROM state WHERE NOT _deleted ORDER BY {key}").read_all())
        assert [tuple(row.values()) for row in rows.to_pylist()] == source


def assert_every_step_once(pipeline: Pipeline) -> None:
    """Require that no two events share a position and that each update is one step after its row's former state."""
    events = DeltaTable(str(pipeline.lake / "events")).to_pyarrow_table(
        columns=["lsn", "seq", "table", "op", "key", "after", "batch"]
    ).to_pylist()
    events.sort(key=lambda e: (e["lsn"], e["seq"]))
    assert len({(e["lsn"], e["seq"]) for e in events}) == len(events)
    rows: dict[tuple[str, str], int] = {}
    for event in events:
        name = event["table"], json.dumps(event["key"])
        if event["op"] == "d":
            rows.pop(name)
            continue
        steps = int(dict(event["after"])["steps"])
        if event["op"] == "u" and name in rows:
            assert steps == rows[name] + 1
        elif event["op"] == "r" and name in rows:
            assert steps == rows[name]
        rows[name] = steps
    landed = DeltaTable(str(pipeline.lake / "landing")).transaction_version("capture/shop")
    assert DeltaTable(str(pipeline.lake / "events")).transaction_version("reconcile/shop") == landed
