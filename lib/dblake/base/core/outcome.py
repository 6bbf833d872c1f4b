"""What a scheduler does after a job has ended: continue, retry or stop.

Place: beside the exit codes of ``errors``; the supervisor of a scheduler, such as ``dblake-airflow``, asks it.
"""

from __future__ import annotations

from enum import Enum

from dblake.base.core.errors import ExitCode

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
