"""Runs of jobs: when they are reported, and the parent and root run that the environment names."""

from __future__ import annotations

import pytest

from dblake.operate.lineage.events import ParentRun, parents_of
from dblake.operate.lineage.switch import is_reported

RUN = "0197e3d4-7c60-7a3e-8b8f-0f6f3c1a2b3c"
PARENT = ParentRun("ns", "dag.task", RUN)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OPENLINEAGE_URL": ""}, False),
        ({"OPENLINEAGE_URL": "http://marquez:5000"}, True),
        ({"OPENLINEAGE_CONFIG": "/etc/openlineage.yml"}, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "kafka"}, True),
        ({"OPENLINEAGE_NAMESPACE": "prod"}, False),
        ({"OPENLINEAGE_URL": "http://marquez:5000", "OPENLINEAGE_DISABLED": "True"}, False),
    ],
)
def test_reporting_is_switched_on_by_a_transport(environment: dict[str, str], expected: bool) -> None:
    assert is_reported(environment) is expected


@pytest.mark.parametrize(
    ("parent", "root", "expected"),
    [
        ("", "", (None, None)),
        (f"ns/dag.task/{RUN}", "", (PARENT, None)),
        (f"ns/dag.task/{RUN}", f"http://ns:1/a/dag/{RUN}", (PARENT, ParentRun("http://ns:1/a", "dag", RUN))),
        (f"ns/dag.task/{RUN}", "ns/dag/no-uuid", (PARENT, None)),
        ("ns/dag.task/manual__2026", f"ns/dag/{RUN}", (None, None)),
        (f"/dag/{RUN}", "", (None, None)),
    ],
)
def test_parent_run_is_read_from_environment(
    parent: str, root: str, expected: tuple[ParentRun | None, ParentRun | None]
) -> None:
    """A text that names no run is none, because an event with it would be invalid."""
    assert parents_of({"OPENLINEAGE_PARENT_ID": parent, "OPENLINEAGE_ROOT_PARENT_ID": root}) == expected
