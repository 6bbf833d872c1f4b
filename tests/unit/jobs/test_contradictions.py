"""Options that contradict each other are refused, before anything starts."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from dblake.core.errors import UsageError

CONF = str(Path(__file__).parents[3] / "conf" / "quickstart.yaml")


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        ("run", ["--continuous", "--json"]), ("state", ["--interval", "5"]), ("preflight", ["--sql", "--json"]),
        ("preflight", ["--dry-run"]), ("reconcile", ["--compare"]), ("reconcile", ["--continuous", "--from", "2"]),
        ("verify", ["--repair"]), ("dump", ["throttle", "--off", "--delay", "1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_contradicting_options_are_refused(job: str, arguments: list[str]) -> None:
    command = getattr(importlib.import_module(f"jobs.{job}"), job)
    done = CliRunner().invoke(command, [*arguments, "--conf", CONF])
    assert isinstance(done.exception, UsageError), done.output
    assert done.exception.next_step
