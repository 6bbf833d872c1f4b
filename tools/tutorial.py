"""Play the commands of docs/tutorial.md: ``python -m tools.tutorial`` writes what they print into the page.

A ``sh`` block is played; a ``text`` block after it is what it prints to stdout. All blocks run in one shell, beside a
PostgreSQL server of its own, in a folder with links to this checkout. Guarantee: ``tests/e2e/test_tutorial.py`` fails
when a command fails, or prints something else than the page has. ``normalize`` leaves out what differs between two
runs, such as positions and times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```sh\n(?P<commands>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_MARK = "---- end of block ----"
_SECONDS = 1500
#: What differs between two runs, in the order in which it is replaced.
_VARYING = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+\d\d(:?00)?|Z)?", "TIME"),
    (r"\d{8}-\d{6}-\d{3}-[0-9a-f]{4}", "DUMP"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b[0-9a-f]{16}\b", "SCHEMA"),
    (r"(\d+) of \1 checks", "ALL checks"),
    (r"landed [\d,]+ rows in [\d,]+ batches", "landed ROWS"),
    (r"(batch|batches)(\W+)[\d,]+( to \d+)?", r"\1\2BATCH"),
    (r"(?m)^\d+(\s+row\s)", r"BATCH\1"),
    (r"(│ events │ )\d+", r"\1BATCH"),
    (r"[\d,]+ events", "EVENTS"),
    (r"\b1/\d{6,}", "1/POSITION"),
    (r"\b\d{6,}\b", "NUMBER"),
    (r"\b(txid\W+)\d+", r"\1TXID"),
    (r"[━─┏┓┗┛┡┩└┘├┤┬┴┼╇┳┻-]{2,}", "--"),
    (r"[ \t]+", " "),
)


@dataclass(frozen=True)
class Block:
    """Commands of the page, and what they print; None if the page does not show it."""

    commands: str
    output: str | None


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of the page in their order."""
    return [Block(found["commands"], found["output"]) for found in _BLOCK.finditer(page)]


def play(blocks: list[Block], folder: Path, server: EmbeddedPostgres) -> list[str]:
    """Run all blocks in one shell and return what each printed. Raises CalledProcessError with stderr if one fails."""
    for entry in HOME.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    script = "".join(f"{block.commands}\necho '{_MARK}'\n" for block in blocks)
    environment = os.environ | {
        "PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": server.user, "PGPASSWORD": server.password,
        "PATH": f"{server.binaries}:{os.environ['PATH']}",
        "DBLAKE_VENV": sys.prefix, "COLUMNS": "120",
    }
    done = subprocess.run(
        ["bash", "-eu"], input=script, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "bash", done.stdout[-2000:], done.stderr[-4000:])
    return [output.removeprefix("\n") for output in done.stdout.split(_MARK)[:-1]]


def write_outputs(page: str, outputs: list[str]) -> str:
    """Return the page with these outputs in its ``text`` blocks."""
    remaining = iter(outputs)

    def replace(found: re.Match[str]) -> str:
        output = next(remaining)
        if found["output"] is None:
            return found[0]
        lines = "\n".join(line.rstrip() for line in output.rstrip().splitlines())
        return f"```sh\n{found['commands']}```\n\n```text\n{lines}\n```\n"

    return _BLOCK.sub(replace, page)


def normalize(output: str) -> str:
    """Return an output without what differs between two runs."""
    for pattern, replacement in _VARYING:
        output = re.sub(pattern, replacement, output)
    return "\n".join(line.strip() for line in output.strip().splitlines())


def main() -> None:
    """Play the page on a server of its own and write it."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name, "checkout")).mkdir()
        with EmbeddedPostgres(Path(name, "data"), settings={"fsync": "off"}) as server:
            PAGE.write_text(write_outputs(page, play(read_blocks(page), folder, server)), encoding="utf-8")


if __name__ == "__main__":
    main()
