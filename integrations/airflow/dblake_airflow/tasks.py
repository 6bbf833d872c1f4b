"""Define what Airflow runs, in which order, and how it treats each exit code; free of Airflow itself.

Every task is one command line of ``spark-submit.sh`` or ``dblake``, which can be run by hand as well.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dblake.config import AirflowConfig

_SCRIPT = Path(__file__).parents[3] / "spark-submit.sh"
COMMAND = str(_SCRIPT) if _SCRIPT.is_file() else "dblake"
"""What runs a job by default: the script of the checkout that this file is part of, else the installed command."""

START_DATE = datetime(2026, 1, 1, tzinfo=UTC)
"""Any past date: catchup is off, the next run does the work of missed ones."""
CAPTURE = "capture"
RUN = "run"
JOBS: Mapping[str, tuple[str, ...]] = {
    CAPTURE: ("--until-caught-up",),
    RUN: (),
}
"""The jobs of a run in order, each with its options."""


def scheduled_jobs(settings: AirflowConfig) -> dict[str, tuple[str, ...]]:
    """Return a run's jobs in order with their options; a supervised capture runs outside Airflow."""
    return {job: options for job, options in JOBS.items() if settings.capture == "bounded" or job != CAPTURE}


def delivery(name: str) -> tuple[str, ...]:
    """Return the job that delivers to an output, with its options."""
    return "subscribe", "--output", name, "--until-caught-up"


def command_line(conf: str | Path, *words: str, command: str | None = None) -> str:
    """Return the command that runs a job; ``words`` are the job, perhaps a subcommand, and its options."""
    return shlex.join([command or COMMAND, *words, "--conf", str(conf)])


def changed_tables(versions: Mapping[str, int], previous: Mapping[str, int] | None) -> dict[str, int]:
    """Return the tables whose version differs from the last announcement; all tables if there was none."""
    return {table: version for table, version in versions.items() if version != (previous or {}).get(table)}


def find_configurations(patterns: Sequence[str]) -> list[str]:
    """Return the files that glob patterns match, in order, each once."""
    return sorted({str(Path(file).absolute()) for pattern in patterns for file in glob.glob(pattern)})


def pool_of(source: str) -> str:
    """Return the name of the pool that all tasks of a source share."""
    return f"dblake_{source}"
