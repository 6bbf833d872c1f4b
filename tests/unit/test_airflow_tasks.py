"""What Airflow is told to run and to try again, as far as it can be said without Airflow."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dblake.config import AirflowConfig
from pipelines.airflow.tasks import SCRIPT, Verdict, changed, jobs, line, verdict


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Verdict.DONE),
        (75, Verdict.AGAIN),
        (-9, Verdict.AGAIN),
        (-15, Verdict.AGAIN),
        (130, Verdict.AGAIN),
        (137, Verdict.AGAIN),
        (143, Verdict.AGAIN),
        (1, Verdict.GIVE_UP),
        (64, Verdict.GIVE_UP),
        (65, Verdict.GIVE_UP),
        (70, Verdict.GIVE_UP),
        (78, Verdict.GIVE_UP),
        (99, Verdict.GIVE_UP),
        (127, Verdict.GIVE_UP),
        (128, Verdict.GIVE_UP),
        (255, Verdict.GIVE_UP),
    ],
)
def test_only_75_and_a_killed_job_are_tried_again(code: int, expected: Verdict) -> None:
    assert verdict(code) is expected


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ("bounded", ["capture --until-caught-up", "reconcile", "state", "check", "maintain"]),
        ("supervised", ["reconcile", "state", "check", "maintain"]),
    ],
)
def test_the_jobs_of_a_run(capture: str, expected: list[str]) -> None:
    settings = AirflowConfig.model_validate({"capture": capture})
    assert [" ".join((job, *options)) for job, options in jobs(settings).items()] == expected


def test_a_line_is_what_a_shell_takes_apart_again() -> None:
    made = line(Path("/my files/it's.yaml"), "capture", "--until-caught-up")
    assert shlex.split(made) == [str(SCRIPT), "capture", "--until-caught-up", "--conf", "/my files/it's.yaml"]
    assert SCRIPT.is_file()


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({"public.a": 3, "public.b": 1}, None, {"public.a": 3, "public.b": 1}),
        ({"public.a": 3, "public.b": 1}, {}, {"public.a": 3, "public.b": 1}),
        ({"public.a": 4, "public.b": 1}, {"public.a": 3, "public.b": 1}, {"public.a": 4}),
        ({"public.a": 3}, {"public.a": 3}, {}),
        # Removed by hand and made anew.
        ({"public.a": 0}, {"public.a": 7}, {"public.a": 0}),
        ({}, {"public.a": 3}, {}),
    ],
)
def test_tables_that_have_changed(now: dict[str, int], before: dict[str, int] | None, expected: dict[str, int]) -> None:
    assert changed(now, before) == expected
