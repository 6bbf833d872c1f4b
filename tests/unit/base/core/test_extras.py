"""A missing package is reported with the extra that installs it, and every extra is declared with tested versions."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dblake.base.core.extras import EXTRAS, missing_extra

HOME = Path(__file__).parents[4]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(lines: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {requirement.name.lower(): requirement for requirement in found if requirement.name != "dblake"}


BASE = requirements(PROJECT["dependencies"])
BY_EXTRA = {name: requirements(lines) for name, lines in PROJECT["optional-dependencies"].items()}


def test_missing_extra_of_driver_names_command() -> None:
    error = missing_extra(ModuleNotFoundError("no", name="psycopg2.extras"))
    assert error is not None
    assert str(error) == (
        "the Python package psycopg2 is not installed. Next: pip install 'dblake[postgres]'; "
        "in a checkout: ./spark-submit.sh setup"
    )


@pytest.mark.parametrize("name", [None, "dblake.nothing", "numpy"])
def test_missing_extra_of_other_package_is_none(name: str | None) -> None:
    assert missing_extra(ImportError("no", name=name)) is None


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_extra_declares_its_package(package: str, extra: str) -> None:
    names = {name.lower().replace("_", "-") for name in packages_distributions()[package]}
    assert names & BY_EXTRA[extra].keys()


def test_pinned_requirements_lie_in_declared_ranges() -> None:
    """The application's pins are versions that the library accepts, and no pin is undeclared."""
    pins = re.findall(r"^([\w.-]+)==([\w.]+)$", (HOME / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for name, version in pins:
        declared = [every[name.lower()] for every in (BASE, *BY_EXTRA.values()) if name.lower() in every]
        assert declared, name
        assert all(requirement.specifier.contains(version) for requirement in declared), name
