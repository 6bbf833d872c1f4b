"""Large inputs in reduced size: a transaction of 150 MB, many tables, a busy table beside an idle captured one.

The benchmarks measure capture's memory for a million rows and for a thousand tables.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.process import ProcessResult, run
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.loop import Until
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.rig import HOME, Rig, rig_on

ROWS, WIDE = 150_000, 1000
TABLES = 120
_MANY = f"""
INSERT INTO t SELECT 1000 + n, 0, repeat(chr(97 + n %% 26), {WIDE}) FROM generate_series(1, {ROWS}) n
"""
_MANY_OF_MYSQL = f"""
INSERT INTO t SELECT 1000 + seq, 0, repeat(char(97 + seq %% 26), {WIDE}) FROM seq_1_to_{ROWS}
"""


def capture_until_caught_up(rig: Rig) -> tuple[ProcessResult, dict[str, int]]:
    """Run capture as a process until it has caught up; return the run and its JSON output."""
    command = [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(rig.conf), "--until-caught-up", "--json"]
    ran = run(command, rig.environment)
    return ran, json.loads(ran.output)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_transaction_of_150_mb_lands_in_bounded_memory(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with rig_on(kind, request, tmp_path, max_bytes=4 << 20) as rig:
        before = rig.newest_batch()
        connection = rig.connect()
        with connection.cursor() as cursor:
            cursor.execute(_MANY if kind == "postgres" else _MANY_OF_MYSQL, ())
        connection.commit()
        connection.close()
        ran, landed = capture_until_caught_up(rig)
        assert rig.newest_batch() - before >= 25
        assert landed["bytes"] > ROWS * WIDE
        # Python and its libraries take about half of that.
        assert ran.peak_mb < 300, f"{ran.peak_mb:.0f} MB"
        # Rows of a file are in no order; positions order them.
        rows = rig.lake.landing().select(["kind", "lsn", "seq", "last_in_txn"]).sort_by("seq").to_pylist()
        changes = [row for row in rows if row["kind"] == "row"]
        assert len({row["lsn"] for row in changes}) == 1
        assert [row["last_in_txn"] for row in changes] == [False] * (len(changes) - 1) + [True]
        if kind == "postgres":
            assert len(changes) == ROWS


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def test_many_tables_are_captured_and_dumped(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tables = [
        statement for number in range(1, TABLES + 1) for statement in (
            f"CREATE TABLE public.many_{number} (id int PRIMARY KEY, v varchar(20))",
            f"INSERT INTO public.many_{number} VALUES (1, 'a'), (2, 'b')",
        )
    ]
    with rig_on(kind, request, tmp_path, tables) as rig:
        rig.configure(delay=0.0)
        write = rig.connect()
        with write.cursor() as cursor:
            for number in range(1, TABLES + 1):
                cursor.execute(f"INSERT INTO many_{number} VALUES (3, 'logged')", ())
        write.commit()
        write.close()
        rig.lake.dump(*(f"public.many_{number}" for number in range(1, TABLES + 1)))
        ran, _ = capture_until_caught_up(rig)
        assert {dump["state"] for dump in rig.lake.dumps()} == {"done"}
        assert sum(dump["rows"] for dump in rig.lake.dumps()) == 3 * TABLES
        assert ran.peak_mb < 300, f"{ran.peak_mb:.0f} MB"
        decoded = [(row["table"], row["op"], row["key"]["id"]) for row in rig.lake.decoded()]
        expected = [("c", "3"), ("r", "1"), ("r", "2"), ("r", "3")]
        assert sorted(decoded) == sorted((f"public.many_{n}", *row) for n in range(1, TABLES + 1) for row in expected)


def test_idle_captured_table_releases_log_of_busy_one(
    database: Database, tmp_path: Path
) -> None:
    backend = PostgresBackend(database)
    for name in ("quiet", "busy"):
        backend.create(TableSchema(f"public.{name}", (Column("id", "integer", False, 1), Column("v", "text"))))
    source, lake, stop = backend.source("public.quiet"), CaptureLake(tmp_path), threading.Event()
    capturing = threading.Thread(
        target=lake.capture, args=(source,), kwargs={"until": Until(), "stop": stop, "heartbeat_seconds": 0.3}
    )
    began = backend.log_end()
    capturing.start()
    try:
        for step in range(10):
            backend.run(
                "INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series"
                f"({step * 3000}, {step * 3000 + 2999}) n", "CHECKPOINT",
            )
        end = backend.log_end()
        assert end - began > 30_000_000
        # Both the confirmed position and the log that the server retains for the slot.
        wait_until(30, lambda: backend.confirmed() >= end)
        wait_until(30, lambda: retained_bytes(backend) < (end - began) / 2)
    finally:
        stop.set()
        capturing.join()
        backend.close()
    assert {row["kind"] for row in lake.landing().to_pylist()} <= {"heartbeat", "schema"}


def retained_bytes(backend: PostgresBackend) -> int:
    """Return how many bytes of log the server retains for the slot."""
    assert backend.settings is not None
    backend.run("CHECKPOINT")
    query = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
    return int(backend.value(query, backend.settings.slot))


def wait_until(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
