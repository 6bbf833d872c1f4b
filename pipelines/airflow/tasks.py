"""What Airflow is to run, in which order, and what to make of how it ended: all of it that can be said without Airflow.

Each task is one line of ``spark-submit.sh``, as anybody would type it, and the exit code alone decides what comes next.
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
STATE = "state"
JOBS: Mapping[str, tuple[str, ...]] = {
    CAPTURE: ("--until-caught-up",),
    "reconcile": (),
    STATE: (),
    "check": (),
    "maintain": (),
}
"""The jobs of a run and the options of each, one after the other."""

_SIGNALS = range(129, 129 + 64)


class Verdict(Enum):
    """What the scheduler is to do about an ending."""

    DONE = "done"
    AGAIN = "try again"
    GIVE_UP = "do not try again"


def verdict(code: int) -> Verdict:
    """What an exit code asks for.

    A job that was killed, by its kernel, its machine or a person, is run again: jobs go on where the last one was and
    do nothing twice. A killed process has a negative code, or 128 and the signal's number where a shell was waiting.
    """
    if code == ExitCode.DONE:
        return Verdict.DONE
    killed = code < 0 or code in _SIGNALS
    return Verdict.AGAIN if killed or code == ExitCode.TRY_AGAIN else Verdict.GIVE_UP


def jobs(settings: AirflowConfig) -> dict[str, tuple[str, ...]]:
    """The jobs of a run with their options, in order. A supervised capture runs by itself, beside Airflow."""
    return {job: options for job, options in JOBS.items() if settings.capture == "bounded" or job != CAPTURE}


def line(conf: Path, *words: str) -> str:
    """The command that runs a job: ``words`` are the job and its options, the first of which may be a subcommand."""
    return shlex.join([str(SCRIPT), *words, "--conf", str(conf)])


def changed(now: Mapping[str, int], before: Mapping[str, int] | None) -> dict[str, int]:
    """The tables whose state has another version than when tables were last announced; all, if none were yet."""
    return {table: version for table, version in now.items() if version != (before or {}).get(table)}
