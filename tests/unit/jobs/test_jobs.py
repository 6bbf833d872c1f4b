"""``./spark-submit.sh JOB --help``, the script's own help, and the jobs that must not load Spark."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dblake import __version__

HOME = Path(__file__).parents[3]
SCRIPT = HOME / "spark-submit.sh"
JOBS = sorted(file.stem for file in (HOME / "jobs").glob("*.py") if file.stem != "__init__")
LIGHT = re.findall(r'^light="(.*)"$', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)[0].split()

# Runs a job's --help and reports whether Spark was imported.
HELP = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print("exit", end.code)
print("jvm", "py4j" in sys.modules or "pyspark" in sys.modules)
"""


def script(*arguments: str, cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("job", JOBS)
def test_job_help_and_spark_imports(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP, str(HOME / "jobs" / f"{job}.py")],
        env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(f"Usage: ./spark-submit.sh {job} ")
    assert "exit 0" in done.stdout
    if job in LIGHT:
        assert "jvm False" in done.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["../jobs/capture"], ["Capture"], ["__init__"]])
def test_unknown_job_lists_all_jobs(arguments: list[str]) -> None:
    done = script(*arguments)
    assert done.returncode == 64
    jobs = "".join(f" {job}" for job in JOBS)
    assert done.stderr == f"dblake: no such job: {arguments[0]}. Next: use one of{jobs}\n"


@pytest.mark.parametrize(("arguments", "code"), [([], 64), (["--help"], 0), (["-h"], 0)])
def test_script_prints_help(arguments: list[str], code: int) -> None:
    done = script(*arguments)
    assert done.returncode == code
    assert done.stdout.startswith("Run a dblake job: ./spark-submit.sh JOB")
    assert done.stdout.endswith(f"Jobs, each with --help:{''.join(f' {job}' for job in JOBS)}\n")


@pytest.mark.parametrize("arguments", [["--version"], ["status", "--version"], ["reconcile", "--version"]])
def test_script_and_jobs_print_version(arguments: list[str]) -> None:
    assert script(*arguments).stdout == f"dblake {__version__}\n"


def test_every_job_has_version_option() -> None:
    for job in JOBS:
        command = getattr(importlib.import_module(f"jobs.{job}"), job)
        assert CliRunner().invoke(command, ["--version"]).output == f"dblake {__version__}\n", job


def test_script_runs_through_symlink(tmp_path: Path) -> None:
    (tmp_path / "a link").symlink_to(SCRIPT)
    done = subprocess.run(
        [str(tmp_path / "a link"), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
