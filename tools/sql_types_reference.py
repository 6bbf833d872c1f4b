"""Write the type table of ``docs/outputs.md`` from the mapping in ``dblake.serve.outputs.sql.types``.

Run ``python -m tools.sql_types_reference`` to rewrite the part between its two marks.
"""

from __future__ import annotations

import re
from pathlib import Path

from dblake.serve.outputs.sql.types import SQL_TYPES

PAGE = Path(__file__).parents[1] / "docs" / "outputs.md"
_BEGIN, _END = "<!-- types: generated -->\n", "<!-- /types -->\n"
_PLACES = (("{type}", "the same"), ("{0},{1}", "p,s"), ("({0})", "(n)"), ("{0}", ""))


def build_table() -> str:
    """Return the table as Markdown."""
    lines = ["| source type | PostgreSQL | MariaDB, MySQL |", "| --- | --- | --- |"]
    for row in SQL_TYPES:
        listed = re.split(r", (?![^(]*\))", row.shown)
        names = row.shown if row.shown.startswith("arrays") else ", ".join(f"`{name}`" for name in listed)
        lines.append(f"| {names} | {_shown(row.postgres)} | {_shown(row.mysql)} |")
    lines.append("| all others: text, domains' and users' types, extensions, … | `text` | `longtext` |")
    return "\n".join(lines) + "\n"


def replace_table(page: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + "\n" + build_table() + "\n" + _END + after


def _shown(template: str) -> str:
    out = re.sub(r"\{0:\d\}", "", template)
    for mark, text in _PLACES:
        out = out.replace(mark, text)
    return out if out == "the same" else f"`{out}`"


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
