"""The committed figures are those that tools/figures.py makes, and their stories end with the source's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.figures import DOCS, build_files
from tools.window_traces import build_traces

TRACES = {trace["name"]: trace for trace in build_traces()}
FILES = build_files()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_figure_committed_equals_made(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == FILES[file], "run python -m tools.figures"


def test_figures_folder_has_no_other_file() -> None:
    assert set((DOCS / "figures").iterdir()) == {file for file in FILES if file.suffix == ".svg"}


@pytest.mark.parametrize("trace", TRACES.values(), ids=list(TRACES))
def test_story_state_equals_source(trace: dict[str, Any]) -> None:
    assert trace["state"] == trace["source"]


def test_stories_evict_and_fill_as_pages_describe() -> None:
    found = {
        name: [(verdict["key"], verdict["verdict"], verdict["at"], verdict["by"]) for verdict in trace["verdicts"]]
        for name, trace in TRACES.items()
    }
    assert found == {
        "update": [("1", "emitted", "1/140/0", []), ("2", "evicted", None, ["1/130"]), ("3", "emitted", "1/140/4", [])],
        "delete": [("1", "emitted", "1/130/0", []), ("2", "emitted", "1/130/2", []), ("3", "evicted", None, ["1/120"])],
        "late": [("1", "emitted", "1/130/0", []), ("2", "evicted", None, ["1/110"]), ("3", "emitted", "1/130/4", [])],
        "large": [("1", "emitted", "1/130/0", []), ("2", "filled", "1/130/2", ["1/120"])],
    }


def test_late_story_published_rule_keeps_stale_row() -> None:
    """The story is about a rule that matters: without the snapshot order 2 would stay as the chunk read it."""
    late = TRACES["late"]
    assert late["source"]["2"] == {"status": "paid"}
    assert late["published"]["2"] == {"status": "new"}
    assert all(trace["published"] == trace["source"] for name, trace in TRACES.items() if name != "late")
