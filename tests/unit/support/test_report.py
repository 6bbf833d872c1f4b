"""The output of a test run: a line per area, versions, skips counted by reason."""

from __future__ import annotations

import pytest

from tests.support import report

pytest_plugins = ["pytester"]

_PASSING = "def test_one(): pass\ndef test_two(): pass\n"
_MIXED = """\
import pytest
from tests.support.debian import Unavailable

@pytest.fixture(scope="module")
def server():
    raise Unavailable("no server here. Next: install one")

def test_needs_server_one(server): pass
def test_needs_server_two(server): pass
def test_starts_server(): raise Unavailable("no other server")
def test_fails(): assert False
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    for name, text in {"unit": _PASSING, "e2e/deep": _MIXED}.items():
        area = pytester.path / "tests" / name
        area.mkdir(parents=True)
        (area / f"test_{name.replace('/', '_')}.py").write_text(text)
    return pytester


def run(folder: pytest.Pytester, *options: str) -> list[str]:
    return folder.runpytest("-p", "tests.support.report", *options).outlines


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/unit/mysql/test_x.py::test_y[a/b]", "unit"), ("tests/e2e/test_x.py::test_y", "e2e"),
        ("tests/test_x.py::test_y", "tests"), ("tests/spark/transform/state/test_x.py::test_y", "spark/transform"),
    ],
)
def test_area_nodeid_gives_folder(nodeid: str, name: str) -> None:
    assert report.area_of(nodeid) == name


def test_by_area_run_prints_line_per_area(folder: pytest.Pytester) -> None:
    lines = run(folder, "--by-area")
    start = next(number for number, line in enumerate(lines) if line.startswith("collected 6 items"))
    assert lines[start + 1:lines.index("", start)] == [
        "failed: tests/e2e/deep/test_e2e_deep.py::test_fails", "e2e: 1 failed, 3 skipped in 0 s",
        "unit: 2 passed in 0 s",
    ]
    assert "1 failed, 2 passed, 3 skipped in" in lines[-1]


def test_default_run_prints_dots(folder: pytest.Pytester) -> None:
    assert any(line.startswith("tests/unit/test_unit.py ..") for line in run(folder))


def test_unavailable_server_skips_and_counts_reason(folder: pytest.Pytester) -> None:
    lines = run(folder)
    start = next(number for number, line in enumerate(lines) if "skipped, by reason" in line)
    assert lines[start + 1:start + 3] == ["    2  no server here. Next: install one", "    1  no other server"]


def test_versions_noted_are_listed(folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_versions", {})
    assert not any("= versions =" in line for line in run(folder))
    report.note_version("PostgreSQL", "18.1")
    report.note_version("PostgreSQL", "16.2")
    assert "PostgreSQL 16.2, 18.1" in run(folder)
