"""Run the capture job as a user starts it, on any database, and measure its dump."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from benchmarks.process import ProcessResult, run
from dblake.ingest.capture.dump_queue import dump_status, queue_dump
from dblake.ingest.capture.progress import open_progress

SOURCE, PASSWORD = "bench", "benchmark"
HOME = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}


def run_capture(
    folder: Path, configuration: str, dump: Sequence[str], secrets: Mapping[str, str] = MappingProxyType({})
) -> ProcessResult:
    """Run capture until it has caught up. ``folder`` is the run's, ``dump`` the tables to dump, possibly none.

    ``secrets`` are variables that the configuration references.
    """
    configure(folder, configuration)
    if dump:
        request_dump(folder, dump)
    return run([*_command(folder), "--until-caught-up", "--json"], {**ENVIRONMENT, **secrets})


def start_capture(folder: Path, configuration: str) -> subprocess.Popen[bytes]:
    """Start capture, which runs until it is stopped."""
    configure(folder, configuration)
    return subprocess.Popen(_command(folder), env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL)


def request_dump(folder: Path, tables: Sequence[str]) -> None:
    """Queue a dump of tables, before or while capture runs."""
    queue_dump(open_progress(f"file:{folder}/progress", SOURCE), tables)


def dump_times(folder: Path) -> tuple[datetime, datetime] | None:
    """Return when the only dump of a run began and ended; None until it has ended."""
    (entry,) = dump_status(open_progress(f"file:{folder}/progress", SOURCE))
    if entry["state"] != "done":
        return None
    return datetime.fromisoformat(entry["started_at"]), datetime.fromisoformat(entry["finished_at"])


def dump_seconds(folder: Path, rows: int) -> float:
    """Return the seconds that the dump of a run took. Raises RuntimeError if it landed fewer than ``rows``."""
    (done,) = dump_status(open_progress(f"file:{folder}/progress", SOURCE))
    if done["state"] != "done" or done["rows"] != rows:
        raise RuntimeError(f"the dump is {done['state']} with {done['rows']} of {rows} rows")
    began, ended = (datetime.fromisoformat(done[name]) for name in ("started_at", "finished_at"))
    return (ended - began).total_seconds()


def configure(folder: Path, configuration: str) -> None:
    """Write the configuration of a run, and the password that it references, into the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "password").write_text(PASSWORD, encoding="ascii")
    (folder / "bench.yaml").write_text(configuration, encoding="utf-8")


def _command(folder: Path) -> list[str]:
    return [sys.executable, str(HOME / "jobs" / "capture.py"), "--conf", str(folder / "bench.yaml")]
