"""Jobs that a job runs as processes of its own: their command lines, and how they are supervised.

Place: below ``up`` and ``subscribe --all``. Guarantee: a part has the configuration and verbosity of the job that runs
it. Restarts and ends are ``core.supervisor``'s.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dblake.base.core.supervised_process import ProcessSpec
from dblake.base.core.supervisor import supervise
from dblake.installation import application_home, import_paths
from jobs.cli.frame import configuration_file, is_verbose, stop_requested


def watching_part(name: str, job: str, *options: str) -> ProcessSpec:
    """Return the part of a job that only watches: the others have the processor first, and its end is its own."""
    part = job_part(name, job, *options, is_essential=False)
    return replace(part, command=["nice", *part.command]) if shutil.which("nice") else part


def job_part(name: str, job: str, *options: str, is_essential: bool = True, is_bounded: bool = False) -> ProcessSpec:
    """Return the part that runs a job with options; its lines have ``name``."""
    common = ["--conf", str(configuration_file()), *(["--verbose"] if is_verbose() else [])]
    return ProcessSpec(
        name, [sys.executable, str(application_home() / "jobs" / f"{job}.py"), *common, *options],
        {**os.environ, "PYTHONPATH": os.pathsep.join(import_paths())}, is_essential, is_bounded,
    )


def output_parts(names: Iterable[str], *options: str, is_bounded: bool = False) -> list[ProcessSpec]:
    """Return a part per output; the end of one does not end the others."""
    return [
        job_part(f"output {name}", "subscribe", "--output", name, *options, is_essential=False, is_bounded=is_bounded)
        for name in names
    ]


def run_parts(parts: Sequence[ProcessSpec]) -> int:
    """Run all parts until SIGTERM or Ctrl-C; return the exit code, as ``supervise``. Their output goes to stderr."""
    lock = threading.Lock()

    def write_line(line: str) -> None:
        with lock:
            print(line, file=sys.stderr, flush=True)

    with stop_requested() as stop:
        return supervise(parts, stop, write_line)
