"""Runs the capture job as its user would start it, on whichever database, and asks how long its dump took."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.process import Ran, run
from dblake.capture.dump_queue import dump_status, queue_dump
from dblake.capture.progress import open_progress

SOURCE, PASSWORD = "bench", "benchmark"
HOME = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}


def run_capture(folder: Path, configuration: str, dump: Sequence[str]) -> Ran:
    """One run until it has caught up. ``folder`` is the warehouse, and ``dump`` the tables to dump, if any."""
    configure(folder, configuration)
    if dump:
        queue(folder, dump)
    return run([*_command(folder), "--until-caught-up", "--json"], ENVIRONMENT)


def begin_capture(folder: Path, configuration: str) -> subprocess.Popen[bytes]:
    """Capture that goes on until it is told to end."""
    configure(folder, configuration)
    return subprocess.Popen(_command(folder), env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL)


def queue(folder: Path, tables: Sequence[str]) -> None:
    """Asks for a dump of tables, now or before capture begins."""
    queue_dump(open_progress(f"file:{folder}/progress", SOURCE), tables)


def dump_times(folder: Path) -> tuple[datetime, datetime] | None:
    """When the only dump of a run began and ended; None while it has not."""
    (entry,) = dump_status(open_progress(f"file:{folder}/progress", SOURCE))
    if entry["state"] != "done":
        return None
    return datetime.fromisoformat(entry["started_at"]), datetime.fromisoformat(entry["finished_at"])


def dump_seconds(folder: Path, rows: int) -> float:
    """How long the dump of a run took, which must have landed every row."""
    (done,) = dump_status(open_progress(f"file:{folder}/progress", SOURCE))
    if done["state"] != "done" or done["rows"] != rows:
        raise RuntimeError(f"the dump is {done['state']} with {done['rows']} of {rows} rows")
    began, ended = (datetime.fromisoformat(done[name]) for name in ("started_at", "finished_at"))
    return (ended - began).total_seconds()


def configure(folder: Path, configuration: str) -> None:
    """Puts the configuration of a run, and the password it names, into the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "password").write_text(PASSWORD, encoding="ascii")
    (folder / "bench.yaml").write_text(configuration, encoding="utf-8")


def _command(folder: Path) -> list[str]:
    return [sys.executable, str(HOME / "jobs" / "capture.py"), "--conf", str(folder / "bench.yaml")]
