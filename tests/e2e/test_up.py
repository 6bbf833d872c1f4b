"""``up``: starts capture and run together, stops both in order, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.ports import free_port
from tests.e2e.test_run import HOME, TABLES, Shop
from tests.support.postgres import Database
from tests.support.wheel import NO_JVM


class Up:
    """A running ``up``, whose output goes to a file."""

    def __init__(self, shop: Shop, folder: Path, *options: str, **environment: str) -> None:
        self.log = folder / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HOME / "jobs/up.py"), "--conf", str(shop.conf), *options], stdout=log, stderr=log,
                env=shop.environment | environment, start_new_session=True,
            )

    def wait_until(self, condition: str, seconds: float = 60) -> None:
        """Wait until the log holds a text."""
        deadline = time.monotonic() + seconds
        while condition not in self.log.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def parts(self) -> list[int]:
        """Return the process ids of all parts that were started."""
        started = [line for line in self.log.read_text().splitlines() if "started " in line and ", process " in line]
        return [int(line.rpartition(" ")[2]) for line in started]

    def end(self, number: signal.Signals) -> float:
        """Send a signal, require exit code 0 and that no part is left; return the seconds until the end."""
        began = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(30) == 0, self.log.read_text()
        seconds = time.monotonic() - began
        assert [pid for pid in self.parts() if Path(f"/proc/{pid}").exists()] == []
        return seconds


@contextmanager
def running(shop: Shop, folder: Path, *options: str, **environment: str) -> Iterator[Up]:
    up = Up(shop, folder, *options, **environment)
    try:
        yield up
    finally:
        with suppress(ProcessLookupError):
            up.process.kill()
        up.process.wait()
        for pid in up.parts():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_up_replicates_and_ends_all_with_0(database: Database, tmp_path: Path) -> None:
    shop, file = Shop(database, tmp_path), tmp_path / "t0.jsonl"
    shop.conf.write_text(json.dumps(json.loads(shop.conf.read_text()) | {"outputs": {
        "archive": {"type": "jsonl", "path": str(file), "tables": ["public.t0"], "start": "1/0"},
        "broken": {"class": "no.such:Class"},
    }}))
    ports = free_port(), free_port()
    options = ("--metrics-port", str(ports[0]), "--report-port", str(ports[1]))
    with running(shop, tmp_path, *options, **NO_JVM) as up:
        database.run(*(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')" for table in TABLES))
        deadline = time.monotonic() + 90
        while [shop.count(table) for table in TABLES] != [2] * 10 or not file.exists() or '"b"' not in file.read_text():
            assert time.monotonic() < deadline, up.log.read_text()
            time.sleep(0.2)
        up.wait_until("output broken ended with exit code 78 and stays ended; the other parts continue")
        source = json.loads(shop.conf.read_text())["source"]["name"]
        assert f'dblake_status_time_seconds{{source="{source}"}}' in served(up, f"http://127.0.0.1:{ports[0]}/metrics")
        page = served(up, f"http://127.0.0.1:{ports[1]}/")
        assert f"<title>dblake: {source}</title>" in page and '<meta http-equiv="refresh" content="15"' in page
        assert up.end(signal.SIGINT) < 10
        lines = up.log.read_text().splitlines()
        for part in ("run", "capture", "output archive"):
            assert any(line.startswith(f"{part:<14} | ") for line in lines), lines


@pytest.mark.timeout(120)
def test_up_with_invalid_source_stops_with_78(database: Database, tmp_path: Path) -> None:
    shop = Shop(database, tmp_path)
    database.run(f"SELECT pg_drop_replication_slot('run_{database.name}')")
    with running(shop, tmp_path, **NO_JVM) as up:
        assert up.process.wait(90) == 78, up.log.read_text()
        assert "all parts stop" in up.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_jvm_leaves_one_line_and_restarts(database: Database, tmp_path: Path) -> None:
    """The system kills it for its memory: the job ends with 75 and names that, without traces of pyspark."""
    shop = Shop(database, tmp_path)
    shop.conf.write_text(json.dumps(json.loads(shop.conf.read_text()) | {"run": {"check_seconds": 1}}))
    with running(shop, tmp_path) as up:
        database.run(*(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')" for table in TABLES))
        deadline = time.monotonic() + 60
        while not (jvms := java_processes(up)):
            assert time.monotonic() < deadline, up.log.read_text()
            time.sleep(0.1)
        time.sleep(2)
        os.kill(jvms[0], signal.SIGKILL)
        up.wait_until("run ended with exit code 75", 90)
        log = up.log.read_text()
        assert up.end(signal.SIGINT) < 10
    unwanted = ("Traceback", "TaskSetManager", "pyspark", "py4j", "this is a bug")
    assert not [word for word in unwanted if word in log], log


def served(up: Up, address: str) -> str:
    """Return a page once it is served."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
            return str(answer.read().decode())
        assert time.monotonic() < deadline, up.log.read_text()
        time.sleep(0.2)


def java_processes(up: Up) -> list[int]:
    """Return the process ids of Spark's JVMs below the parts of ``up``."""
    groups = set(up.parts())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups and b"SparkSubmit" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
