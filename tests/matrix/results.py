"""The newest result of the matrix, as a file and as the table of ``docs/limits.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.matrix.servers import SERVERS, UNPACKAGED

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
_FILE = Path(__file__).parent / "newest.json"
_BEGIN, _END = "<!-- matrix: written by tests/matrix/run.py -->\n", "<!-- end of matrix -->"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run on one server gave: its full version, the date, the counts of tests, and the names that failed."""

    server: str
    version: str
    date: str
    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: int


def read_results() -> dict[str, Outcome]:
    """Return the newest outcome of each server, by its title."""
    entries = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
    return {entry["server"]: Outcome(**{**entry, "failed": tuple(entry["failed"])}) for entry in entries}


def save_results(results: Mapping[str, Outcome]) -> None:
    """Save the outcomes in the order of the matrix."""
    entries = [asdict(results[server.title]) for server in SERVERS if server.title in results]
    _FILE.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def build_table(results: Mapping[str, Outcome]) -> str:
    """Return the table as Markdown: a row per server that ran, and one of those that cannot be had."""
    lines = ["| server | from | version | run on | passed | failed | skipped |", "| --- " * 7 + "|"]
    for server in SERVERS:
        if result := results.get(server.title):
            lines.append(f"| {server.title} | {server.origin} | {result.version} | {result.date} | {result.passed} | "
                         f"{len(result.failed)} | {result.skipped} |")
        else:
            lines.append(f"| {server.title} | {server.origin} | not run | | | | |")
    lines += [f"| {title} | no package | not run | | | | |" for title in UNPACKAGED]
    return "\n".join(lines) + "\n"


def write_page(results: Mapping[str, Outcome]) -> None:
    """Replace the table in ``docs/limits.md``."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(before + _BEGIN + build_table(results) + _END + after, encoding="utf-8")
