"""A lake without a JVM, its outputs, and the job ``subscribe`` on them as processes.

State has a row of two tables. ``change`` adds an event in a batch of its own, so a test decides when an output lags.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dblake.base.core.schema import TableSchema
from dblake.config import load_config
from pipelines.status import read_status
from pipelines.subscribe import run_subscribe
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema
from tests.support.web_service import Service

HOME = Path(__file__).parents[2]
T, OTHER = (table_schema(f"public.{name}", "id text key", "v text") for name in ("t", "other"))


class OutputLake:
    """The lake in a folder; ``service`` is the target of its HTTP outputs, if it has any."""

    def __init__(
        self, folder: Path, outputs: Mapping[str, Any], service: Service | None = None, **settings: Any,
    ) -> None:
        self.service = service or Service()
        self.plain, self.conf, self.batch = PlainLake(folder / "warehouse"), folder / "shop.yaml", 1
        for schema in (T, OTHER):
            self.plain.schema(schema)
        row = {"id": "1", "v": "a"}
        self.plain.land(1, {T: [(10, "r", "1", row)], OTHER: [(10, "r", "1", row)]})
        self.plain.fold(1)
        self.conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {"name": "shop", "type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
            "outputs": outputs,
        } | settings))

    def change(self, schema: TableSchema = T) -> int:
        """Append a change in a batch of its own; return its LSN."""
        self.batch += 1
        self.plain.land(self.batch, {schema: [(10 * self.batch, "u", "1", {"id": "1", "v": str(self.batch)})]})
        return 10 * self.batch

    def deliver(self, name: str) -> None:
        """Deliver all events to an output, in this process."""
        run_subscribe(load_config(self.conf), name, threading.Event(), until_caught_up=True)

    def status(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        return read_status(load_config(self.conf), ask_source=False)

    def output(self, name: str) -> dict[str, Any]:
        """Return what ``status`` shows of an output."""
        (entry,) = (one for one in self.status()["outputs"] if one["name"] == name)
        return dict(entry)

    def problems(self, *codes: str) -> list[str]:
        """Return the details of open problems with these codes."""
        return [one["detail"] for one in self.status()["problems"] if one["code"] in codes]

    def start(self, log: Path, *options: str, job: str = "subscribe") -> subprocess.Popen[bytes]:
        """Start a job as a process whose output goes to a file."""
        with log.open("wb") as sink:
            return subprocess.Popen(
                [sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(self.conf), *options], stdout=sink,
                stderr=sink, env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}, start_new_session=True,
            )

    @contextmanager
    def running(self, log: Path, *options: str, job: str = "subscribe") -> Iterator[subprocess.Popen[bytes]]:
        """Run a job within the block; kill it and its parts at the end."""
        process = self.start(log, *options, job=job)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for pid in started_parts(log).values():
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def started_parts(log: Path) -> dict[str, int]:
    """Return the newest process id of each part that a supervisor has started, by the part's name."""
    lines = [line for line in log.read_text().splitlines() if ": started " in line and ", process " in line]
    return {
        line.partition(": started ")[2].partition(", process ")[0]: int(line.rpartition(" ")[2]) for line in lines
    }


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
    return value
