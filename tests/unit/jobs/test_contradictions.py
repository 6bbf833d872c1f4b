"""Options that contradict each other are refused, before anything starts."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dblake.base.core.errors import UsageError

CONF = str(Path(__file__).parents[3] / "conf" / "quickstart.yaml")


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        ("run", ["--continuous", "--json"]), ("state", ["--interval", "5"]), ("preflight", ["--sql", "--json"]),
        ("preflight", ["--dry-run"]), ("reconcile", ["--compare"]), ("reconcile", ["--continuous", "--from", "2"]),
        ("sql", ["--json", "--csv", "SELECT 1"]), ("state", ["--continuous", "--once"]),
        ("status", ["--offline", "--prometheus", "metrics.txt"]),
        ("verify", ["--repair"]), ("dump", ["throttle", "--off", "--delay", "1"]),
    ("verify", ["--output", "copy", "--wait"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_contradicting_options_are_refused(job: str, arguments: list[str]) -> None:
    command = getattr(importlib.import_module(f"jobs.{job}"), job)
    done = CliRunner().invoke(command, [*arguments, "--conf", CONF])
    assert isinstance(done.exception, UsageError), done.output
    assert done.exception.next_step


def test_exclusive_flags_give_the_one_that_is_set() -> None:
    from jobs.cli.options import exclusive_flags

    received: list[str | None] = []

    @click.command()
    @exclusive_flags("form", {"json": "", "csv": ""})
    def command(form: str | None) -> None:
        received.append(form)

    for arguments in ([], ["--csv"]):
        assert CliRunner().invoke(command, arguments).exit_code == 0
    assert received == [None, "csv"]
    assert isinstance(CliRunner().invoke(command, ["--json", "--csv"]).exception, UsageError)
