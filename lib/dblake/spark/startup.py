"""Options of the JVM of a job on one machine: a class-data archive, and the quick compiler alone for a short job.

Place: below ``session``. A JVM maps the archive, which set-up writes (``class_archive``), into memory instead of
reading, parsing and verifying each class. A job with little data to read also does without the optimizing compiler,
which takes more time than it saves then: of a job of seconds, about half.

Guarantee: the archive only saves time. Its name depends on Java and on all jars; a JVM for which it does not fit, or
that finds it damaged, starts without it. Without an archive jobs start as before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ARCHIVE_TO = "DBLAKE_ARCHIVE_CLASSES_TO"
"""Where the JVM writes the archive: set only in the process that makes it."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""No warnings about an archive that does not fit."""
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_LAUNCHER = f"{_QUICK_COMPILER} -XX:+UseSerialGC"
"""For the JVM that only assembles the command line of the next one."""


def set_java_options(jars: Sequence[str], log_settings: Path, *, is_short: bool) -> None:
    """Add options to the environment from which ``spark-submit`` takes those of its JVMs.

    ``is_short``: the JVM will not run long enough for code that it optimizes.
    """
    _add("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    # Spark puts its folder of settings first on the class path, where Java's archives allow no folder with files, and
    # only the folder they were written with: one that does not exist is always the same.
    os.environ["SPARK_CONF_DIR"] = "/nonexistent"
    _add("SPARK_SUBMIT_OPTS", f'"-Dlog4j2.configurationFile={log_settings.as_uri()}"')
    if is_short:
        _add("SPARK_SUBMIT_OPTS", _QUICK_COMPILER)
    if target := os.environ.get(ARCHIVE_TO):
        _add("SPARK_SUBMIT_OPTS", f"-XX:ArchiveClassesAtExit={target} {_QUIET}")
    elif (archive := archive_path(jars)).is_file() and " " not in str(archive):
        _add("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}")


def _add(name: str, options: str) -> None:
    os.environ[name] = f"{options} {os.environ.get(name, '')}".strip()


def archive_path(jars: Sequence[str]) -> Path:
    """Return the path of the archive for this Java and these jars."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    files = [java.resolve(), Path(os.environ.get("SPARK_HOME", "")), *map(Path, jars)]
    stamps = [f"{file} {file.stat().st_mtime_ns if file.exists() else 0}" for file in files]
    return Path(sys.prefix) / f"spark-{hashlib.sha256('|'.join(stamps).encode()).hexdigest()[:16]}.jsa"
