"""docs/comparison.md: each statement about another tool has a source, and each source is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
SOURCES = re.findall(r"^\[(\d+)\]: (https://\S+)$", PAGE, re.MULTILINE)
PROSE = re.sub(r"^\[\d+\]: .*$", "", PAGE, flags=re.MULTILINE)
TOOLS = ("Debezium", "Flink CDC", "PeerDB", "Estuary", "OLake", "dlt", "Databricks", "Managed mirroring")


def test_sources_are_numbered_and_each_is_used() -> None:
    numbers = [number for number, _ in SOURCES]
    assert numbers == [str(number) for number in range(1, len(SOURCES) + 1)]
    assert set(re.findall(r"\[(\d+)\]", PROSE)) == set(numbers)


@pytest.mark.parametrize("tool", TOOLS)
def test_section_of_tool_states_needs_and_sources(tool: str) -> None:
    (section,) = re.findall(rf"^## {tool}[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert any(row.startswith("| needs") for row in rows)
    assert any("choose it for" in row for row in rows)
    assert any(row.startswith(("| lacks", "| limits")) and re.search(r"\[\d+\]", row) for row in rows)


def test_page_begins_with_its_date_and_when_not_to_use_it() -> None:
    assert re.search(r"all read on \d{4}-\d\d-\d\d", PAGE)
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE)[0] == "When not to use dblake"
