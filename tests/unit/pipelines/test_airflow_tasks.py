"""The command lines that Airflow runs and how it treats exit codes, tested without Airflow."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dblake.base.core.outcome import Outcome, classify
from dblake.config import AirflowConfig
from dblake_airflow.tasks import COMMAND, changed_tables, command_line, scheduled_jobs


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Outcome.DONE),
        (75, Outcome.RETRY),
        (-9, Outcome.RETRY),
        (-15, Outcome.RETRY),
        (130, Outcome.RETRY),
        (137, Outcome.RETRY),
        (143, Outcome.RETRY),
        (1, Outcome.FAIL),
        (64, Outcome.FAIL),
        (65, Outcome.FAIL),
        (70, Outcome.FAIL),
        (78, Outcome.FAIL),
        (99, Outcome.FAIL),
        (127, Outcome.FAIL),
        (128, Outcome.FAIL),
        (255, Outcome.FAIL),
    ],
)
def test_classify_retries_75_and_killed_jobs(code: int, expected: Outcome) -> None:
    assert classify(code) is expected


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ("bounded", ["capture --until-caught-up", "run"]),
        ("supervised", ["run"]),
    ],
)
def test_scheduled_jobs_by_capture_mode(capture: str, expected: list[str]) -> None:
    settings = AirflowConfig.model_validate({"capture": capture})
    assert [" ".join((job, *options)) for job, options in scheduled_jobs(settings).items()] == expected


def test_command_line_survives_shell_splitting() -> None:
    command = command_line(Path("/my files/it's.yaml"), "capture", "--until-caught-up")
    assert shlex.split(command) == [COMMAND, "capture", "--until-caught-up", "--conf", "/my files/it's.yaml"]
    assert Path(COMMAND).is_file()


@pytest.mark.parametrize(
    ("versions", "previous", "expected"),
    [
        ({"public.a": 3, "public.b": 1}, None, {"public.a": 3, "public.b": 1}),
        ({"public.a": 3, "public.b": 1}, {}, {"public.a": 3, "public.b": 1}),
        ({"public.a": 4, "public.b": 1}, {"public.a": 3, "public.b": 1}, {"public.a": 4}),
        ({"public.a": 3}, {"public.a": 3}, {}),
        # Removed by hand and recreated.
        ({"public.a": 0}, {"public.a": 7}, {"public.a": 0}),
        ({}, {"public.a": 3}, {}),
    ],
)
def test_changed_tables_by_version(
    versions: dict[str, int], previous: dict[str, int] | None, expected: dict[str, int]
) -> None:
    assert changed_tables(versions, previous) == expected
