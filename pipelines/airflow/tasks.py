"""Define what Airflow runs, in which order, and how it treats each exit code; free of Airflow itself.

Every task is one command line of ``spark-submit.sh``, which can be run by hand as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from dblake.config import AirflowConfig

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"

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


def command_line(conf: Path, *words: str) -> str:
    """Return the command that runs a job; ``words`` are the job, perhaps a subcommand, and its options."""
    return shlex.join([str(SCRIPT), *words, "--conf", str(conf)])


def changed_tables(versions: Mapping[str, int], previous: Mapping[str, int] | None) -> dict[str, int]:
    """Return the tables whose version differs from the last announcement; all tables if there was none."""
    return {table: version for table, version in versions.items() if version != (previous or {}).get(table)}
