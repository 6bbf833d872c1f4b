"""``up``: capture and ``run --continuous`` as one command, supervised."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import os
import sys
import threading

import click

from dblake.base.core.supervised_process import ProcessSpec
from dblake.base.core.supervisor import supervise
from dblake.config import Config
from dblake.installation import application_home, import_paths
from jobs.cli.frame import configuration_file, is_verbose, job_options, run_job, stop_requested

_PARTS = {"capture": (), "run": ("--continuous",)}
"""The jobs, each with its options."""


@click.command("up")
@job_options
def up(config: Config) -> int:  # noqa: ARG001 - loaded here, so that a fault in the file starts nothing
    """Replicate a source: run capture, and run --continuous, until Ctrl-C or SIGTERM. Outputs need subscribe.

    A job that ends with 75, or is killed, starts again, after a pause of 1 s that doubles up to 60 s. Any other exit
    code stops both jobs and is this command's. All output goes to stderr, each line with the job's name. One Ctrl-C or
    SIGTERM stops both jobs within 10 s; another Ctrl-C kills them.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_paths())}
    common = ["--conf", str(configuration_file()), *(["--verbose"] if is_verbose() else [])]
    folder = application_home() / "jobs"
    parts = [
        ProcessSpec(job, [sys.executable, str(folder / f"{job}.py"), *common, *options], environment)
        for job, options in _PARTS.items()
    ]
    lock = threading.Lock()

    def write_line(line: str) -> None:
        with lock:
            print(line, file=sys.stderr, flush=True)

    with stop_requested() as stop:
        return supervise(parts, stop, write_line)


if __name__ == "__main__":
    run_job(up)
