"""Runs the capture job as its user would start it, on whichever database, and asks how long its dump took."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from benchmarks.process import Ran, run
from dblake.capture.progress import open_progress
from dblake.capture.requests import queue_dump, status

SOURCE, PASSWORD = "bench", "benchmark"
_HOME = Path(__file__).parents[1]


def run_capture(folder: Path, configuration: str, dump: str | None) -> Ran:
    """One run until it has caught up. ``folder`` is the warehouse, and ``dump`` the table to dump, if any."""
    (folder / "password").write_text(PASSWORD, encoding="ascii")
    (folder / "bench.yaml").write_text(configuration, encoding="utf-8")
    if dump is not None:
        queue_dump(open_progress(f"file:{folder}/progress", SOURCE), [dump])
    return run(
        [sys.executable, str(_HOME / "jobs" / "capture.py"), "--conf", str(folder / "bench.yaml"),
         "--until-caught-up", "--json"],
        {"PYTHONPATH": f"{_HOME / 'lib'}:{_HOME}"},
    )


def dump_seconds(folder: Path, rows: int) -> float:
    """How long the dump of a run took, which must have landed every row."""
    (done,) = status(open_progress(f"file:{folder}/progress", SOURCE))
    if done["state"] != "done" or done["rows"] != rows:
        raise RuntimeError(f"the dump is {done['state']} with {done['rows']} of {rows} rows")
    began, ended = (datetime.fromisoformat(done[name]) for name in ("started_at", "finished_at"))
    return (ended - began).total_seconds()
