"""The ``dblake`` command of an installed package: ``dblake JOB [options]`` equals ``./spark-submit.sh JOB [options]``.

Passes Spark's options to the session, and runs the job in this process. The job parses its own options and ends the
process with its exit code.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys

from dblake import __version__
from dblake.base.core.errors import ExitCode
from dblake.base.core.extras import missing_extra
from dblake.installation import application_home, import_paths

_WITHOUT_SPARK = (
    "capture", "changes", "doctor", "dump", "init", "preflight", "report", "status", "subscribe", "verify",
)
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"


def main() -> None:
    """Run the job that the first argument names. Exit with 64 if there is no such job, else with the job's code."""
    job, *options = sys.argv[1:] or ["--help"]
    jobs = sorted(file.stem for file in (application_home() / "jobs").glob("*.py") if file.stem != "__init__")
    if job in ("-h", "--help"):
        print(f"dblake JOB [--conf FILE] [options]\n\nJobs, each with --help: {' '.join(jobs)}")
        sys.exit(ExitCode.DONE if sys.argv[1:] else ExitCode.USAGE)
    if job == "--version":
        print(f"dblake {__version__}")
        sys.exit(ExitCode.DONE)
    if job not in jobs:
        print(f"dblake: no such job: {job}. Next: use one of {' '.join(jobs)}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    spark_options, job_options = split_options(options)
    if job not in _WITHOUT_SPARK and not {"--help", "--version"} & set(job_options):
        os.environ[_SUBMIT_ARGS] = shlex.join([*spark_options, "pyspark-shell"])
    sys.path[:0] = [path for path in import_paths() if path not in sys.path]
    sys.argv = [f"dblake {job}", *job_options]
    try:
        runpy.run_module(f"jobs.{job}", run_name="__main__", alter_sys=False)
    except ImportError as error:
        # Of the job's module itself; what it imports later is its frame's.
        if (missing := missing_extra(error)) is None:
            raise
        print(f"dblake {job}: {missing.what}. Next: {missing.next_step}", file=sys.stderr)
        sys.exit(missing.exit_code)


def split_options(options: list[str]) -> tuple[list[str], list[str]]:
    """Split ``--master M`` and ``--spark-conf K=V``, which are spark-submit's, from the job's own options.

    >>> split_options(["--master", "local[2]", "--conf", "a.yaml"])
    (['--master', 'local[2]'], ['--conf', 'a.yaml'])
    """
    spark: list[str] = []
    job: list[str] = []
    pending = iter(options)
    for option in pending:
        if option not in ("--master", "--spark-conf"):
            job.append(option)
            continue
        value = next(pending, None)
        if value is None:
            print(f"dblake: {option} requires a value. Next: see dblake JOB --help", file=sys.stderr)
            sys.exit(ExitCode.USAGE)
        spark += ["--master" if option == "--master" else "--conf", value]
    return spark, job
