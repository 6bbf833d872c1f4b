"""Options of the JVMs of a job on one machine: the quick compiler alone where the optimizing one would not pay off.

Place: below ``session``. A job that reads little ends before optimized code pays off: without the optimizing compiler
such a job takes about half of the CPU time. Guarantee: options only save time; a user's own options come last, so that
they win.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"


def set_java_options(*, is_short: bool) -> None:
    """Add options to the environment from which ``spark-submit`` takes its JVMs' options.

    ``is_short``: the job ends before code that its JVM optimizes pays off.
    """
    # This JVM only assembles the command line of the next one.
    _add("SPARK_LAUNCHER_OPTS", f"{_QUICK_COMPILER} -XX:+UseSerialGC")
    if is_short:
        _add("SPARK_SUBMIT_OPTS", _QUICK_COMPILER)


def find_java() -> Path | None:
    """Return the program that Spark starts its JVMs with; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    return Path(program).resolve() if program else None


def _add(name: str, options: str) -> None:
    os.environ[name] = f"{options} {os.environ.get(name, '')}".strip()
