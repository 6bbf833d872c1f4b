"""Define what Airflow runs, in which order, and how it treats each exit code; free of Airflow itself.

Every task is one command line of ``spark-submit.sh``, which can be run by hand as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from dblake.config import AirflowConfig
from dblake.core.errors import ExitCode

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"

CAPTURE = "capture"
RUN = "run"
JOBS: Mapping[str, tuple[str, ...]] = {
    CAPTURE: ("--until-caught-up",),
    RUN: (),
}
"""The jobs of a run in order, each with its options."""

_SIGNAL_CODES = range(129, 129 + 64)


class Outcome(Enum):
    """What the scheduler does after a job has ended."""

    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"


def classify(code: int) -> Outcome:
    """Return the outcome of an exit code: 75 and killed jobs are retried.

    Jobs resume where the previous run ended, so a killed job can be retried. A killed process has a negative code, or
    128 plus the signal's number under a shell.
    """
    if code == ExitCode.DONE:
        return Outcome.DONE
    was_killed = code < 0 or code in _SIGNAL_CODES
    return Outcome.RETRY if was_killed or code == ExitCode.TRY_AGAIN else Outcome.FAIL


def scheduled_jobs(settings: AirflowConfig) -> dict[str, tuple[str, ...]]:
    """Return a run's jobs in order with their options; a supervised capture runs outside Airflow."""
    return {job: options for job, options in JOBS.items() if settings.capture == "bounded" or job != CAPTURE}


def command_line(conf: Path, *words: str) -> str:
    """Return the command that runs a job; ``words`` are the job, perhaps a subcommand, and its options."""
    return shlex.join([str(SCRIPT), *words, "--conf", str(conf)])


def changed_tables(versions: Mapping[str, int], previous: Mapping[str, int] | None) -> dict[str, int]:
    """Return the tables whose version differs from the last announcement; all tables if there was none."""
    return {table: version for table, version in versions.items() if version != (previous or {}).get(table)}
