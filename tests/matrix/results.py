"""The newest result of the matrix, as a file and as the table of ``docs/limits.md``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.matrix.servers import SERVERS, UNPACKAGED
from tests.support.outcomes import HOME, Outcome, replace_block, row_of

PAGE = HOME / "docs" / "limits.md"
RESULTS = Path(__file__).parent / "newest.json"
_BEGIN, _END = "<!-- matrix: written by tests/matrix/run.py -->\n", "<!-- end of matrix -->"


def build_table(results: Mapping[str, Outcome]) -> str:
    """Return the table as Markdown: a row per server that ran, and one of those that cannot be had."""
    lines = ["| server | from | version | run on | passed | failed | skipped |", "| --- " * 7 + "|"]
    lines += [row_of([server.title, server.origin], results.get(server.title)) for server in SERVERS]
    lines += [row_of([title, "no package"], None) for title in UNPACKAGED]
    return "\n".join(lines) + "\n"


def write_page(results: Mapping[str, Outcome]) -> None:
    """Replace the table in ``docs/limits.md``."""
    replace_block(PAGE, _BEGIN, _END, build_table(results))
