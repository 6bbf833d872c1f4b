"""docs/tutorial.md: its commands parse, and in a run of all of them each prints what the page shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.e2e.test_docs import parse_command
from tools.tutorial import PAGE, normalize, play, read_blocks, write_outputs

TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = read_blocks(TEXT)
#: A command ends at the end of its line, at a pipe, or with the brackets around it; not within quotes.
COMMANDS = sorted({
    found.strip() for block in BLOCKS
    for found in re.findall(r'\./dblake [a-z](?:"[^"]*"|[^"#&|)\n])*', block.commands)
})
VALUES = {"$AT": "1/4711", "$NOW": "1/4712", "$BATCH": "7"}


def test_tutorial_shows_output_of_most_blocks() -> None:
    assert len(BLOCKS) >= 12
    assert sum(bool(block.output) for block in BLOCKS) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_tutorial_command_parses(command: str) -> None:
    for name, value in VALUES.items():
        command = command.replace(name, value)
    parse_command(command)


@pytest.mark.parametrize(("first", "second", "is_same"), [
    ("landed 7 rows in 5 batches", "landed 1,007 rows in 12 batches", True),
    ("closed_at | 2026-11-26 03:12:58.853102+00", "closed_at | 2026-11-27 13:00:00.1+00", True),
    ("transaction 1/29784432/2", "transaction 1/31000000/2", True),
    ("┃ id ┃ status ┃\n│ 1  │ new    │", "┃ id  ┃ status   ┃\n│ 1   │ new │", True),
    ("│ 1  │ new    │", "│ 1  │ paid   │", False),
    ("rows_dropped | 1", "rows_dropped | 0", False),
])
def test_output_normalized_keeps_what_matters(first: str, second: str, is_same: bool) -> None:
    assert (normalize(first) == normalize(second)) is is_same


def test_outputs_are_written_below_their_commands() -> None:
    page = "a\n```sh\nx\n```\n\n```text\nold\n```\nb\n```sh\ny\n```\n"
    assert write_outputs(page, ["new\n", "unseen\n"]) == page.replace("old", "new")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tutorial_prints_what_page_shows(tmp_path: Path) -> None:
    (folder := tmp_path / "checkout").mkdir()
    with EmbeddedPostgres(tmp_path / "data", settings={"fsync": "off"}) as server:
        try:
            outputs = play(BLOCKS, folder, server)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error.output}\n{error.stderr}")
    found = [(block.commands, normalize(output)) for block, output in zip(BLOCKS, outputs, strict=True) if block.output]
    assert found == [(block.commands, normalize(block.output)) for block in BLOCKS if block.output]
