"""What trials share: their expectations, the folder of one trial, and the jobs that it starts.

Guarantee: every job that is started ends with its block, and a folder with the logs stays unless every expectation is
met.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dblake.base.core.errors import ConfigError, DblakeError, ExitCode
from dblake.base.core.processes import stop_process

SCRIPT = Path(__file__).parents[1] / "spark-submit.sh"
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation of the trial, whether it was met, and the evidence."""

    claim: str
    is_met: bool
    evidence: str


def run_trial(name: str, folder: Path | None, console: Console, trial: Callable[[Path], list[Expectation]]) -> int:
    """Run a trial in its folder and print its expectations; return the exit code. Raises ConfigError."""
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", next_step="name a folder that does not exist yet")
    path = (folder or Path(tempfile.mkdtemp(prefix=f"dblake-{name}-"))).absolute()
    path.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    keeps_folder = True
    try:
        expectations = trial(path)
        succeeded = all(expectation.is_met for expectation in expectations)
        keeps_folder = folder is not None or not succeeded
    finally:
        if keeps_folder:
            console.print(f"Logs and tables: {path}", soft_wrap=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
    table = Table("", "expectation", "evidence", title=f"{time.monotonic() - started:.0f} seconds")
    for expectation in expectations:
        mark = "[green]✓[/green]" if expectation.is_met else "[red]✗[/red]"
        table.add_row(mark, expectation.claim, expectation.evidence)
    console.print(table)
    return ExitCode.DONE if succeeded else ExitCode.BUG


class Jobs:
    """The jobs on one configuration file, as a user starts them; their logs are beside it."""

    def __init__(self, conf: Path, environment: Mapping[str, str]) -> None:
        self._conf = conf
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._environment = {**inherited, **environment}

    def log(self, name: str) -> Path:
        """Return the file with a running job's output."""
        return self._conf.parent / f"{name}.log"

    def run(self, job: str, *options: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a job to its end, whatever its exit code."""
        return subprocess.run(self._command(job, *options), env=self._environment, capture_output=True, text=True,
                              timeout=seconds, check=False)

    def require(self, job: str, *options: str, seconds: float = 300) -> str:
        """Run a job to its end and return what it printed. Raises DblakeError unless it exits with 0."""
        done = self.run(job, *options, seconds=seconds)
        if done.returncode != ExitCode.DONE:
            raise DblakeError(f"{job} exited with {done.returncode}", next_step=f"see its message: {done.stderr}")
        return done.stdout

    @contextmanager
    def running(self, job: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a job beside the block, and end it."""
        with self.log(job).open("ab") as log:
            process = subprocess.Popen(self._command(job, *options), env=self._environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            stop_process(process, _STOP_SECONDS)

    def _command(self, job: str, *options: str) -> list[str]:
        return [str(SCRIPT), job, "--conf", str(self._conf), *options]
