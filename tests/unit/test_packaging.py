"""The package that ``pip install .`` builds is complete, its command runs every job, lock files are complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dblake import __version__
from dblake.base.core.extras import EXTRAS
from dblake.command import split_options
from dblake.installation import application_home, import_paths

HOME = Path(__file__).parents[2]
LOCKS = (
    "requirements", "requirements-dev", "requirements-airflow", "requirements-migrations", "requirements-components",
)


def dblake(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dblake.command import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": str(HOME / "lib")}
    )


def test_package_list_names_every_package() -> None:
    settings = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = {".".join(f.parent.relative_to(HOME / "lib").parts) for f in (HOME / "lib").rglob("__init__.py")}
    for top in ("jobs", "pipelines"):
        packages |= {
            ".".join(("dblake", "_application", *folder.relative_to(HOME).parts))
            for folder in (HOME / top, *(HOME / top).rglob("*"))
            if folder.is_dir() and any(folder.glob("*.py"))
        }
    assert set(settings["packages"]) == packages | {"dblake._application.conf"}


def test_checkout_is_its_own_application_home() -> None:
    assert application_home() == HOME
    assert import_paths() == [str(HOME / "lib"), str(HOME)]


@pytest.mark.parametrize(
    ("options", "spark", "job"),
    [
        ([], [], []),
        (["--master", "local[2]", "--conf", "a.yaml"], ["--master", "local[2]"], ["--conf", "a.yaml"]),
        (["--once", "--spark-conf", "a=b"], ["--conf", "a=b"], ["--once"]),
    ],
)
def test_command_options_are_split(options: list[str], spark: list[str], job: list[str]) -> None:
    assert split_options(options) == (spark, job)


def test_command_help_lists_every_job() -> None:
    done = dblake("--help")
    jobs = {file.stem for file in (HOME / "jobs").glob("*.py") if file.stem != "__init__"}
    assert done.returncode == 0 and jobs <= set(done.stdout.split())
    assert dblake("--version").stdout == f"dblake {__version__}\n"


def test_command_unknown_job_exits_with_64() -> None:
    done = dblake("reconsile")
    assert done.returncode == 64 and "Next: use one of" in done.stderr


def test_command_job_help_exits_with_0() -> None:
    done = dblake("status", "--help")
    assert done.returncode == 0 and "Usage: " in done.stdout


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_every_direct_requirement_with_hashes(name: str) -> None:
    lock = (HOME / f"{name}.lock").read_text(encoding="utf-8")
    direct = re.findall(r"^([\w.-]+==[\w.]+)$", (HOME / f"{name}.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {line.split(" ")[0].lower().replace("_", "-") for line in lock.splitlines() if re.match(r"\w", line)}
    assert direct
    assert {requirement.lower().replace("_", "-") for requirement in direct} <= pinned
    assert lock.count("--hash=sha256:") >= len(pinned)


def test_jobs_load_with_packages_of_one_extra_alone() -> None:
    """Without PySpark, MySQL's driver, or clients of outputs, all jobs but one load; the command names the extra."""
    blocked = [name for name, extra in EXTRAS.items() if extra not in ("postgres", "sql")]
    block = f"""import sys
class Blocked:
    def find_spec(self, name, *_):
        if name in {blocked}:
            raise ModuleNotFoundError(f"no {{name}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
    jobs = sorted(file.stem for file in (HOME / "jobs").glob("*.py"))
    script = f"""import importlib
for job in {jobs}:
    try:
        importlib.import_module(f"jobs.{{job}}")
    except ImportError as error:
        print(job, error.name)
"""
    done = subprocess.run([sys.executable, "-c", block + script], capture_output=True, text=True, check=True,
                          timeout=120, env={"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"})
    assert done.stdout.split("\n") == ["quickstart pyspark", ""]
    command = block + "from dblake.command import main; sys.argv = ['dblake', 'quickstart', '--help']; main()"
    named = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False, timeout=60,
                           env={"PYTHONPATH": str(HOME / "lib")})
    assert named.returncode == 78
    assert named.stderr.startswith("dblake quickstart: the Python package pyspark is not installed. Next: pip install")
