"""The map of the packages, from their docstrings: ``python -m tools.package_map`` writes it into docs/design.md.

Guarantee: ``tests/unit/tools/test_package_map.py`` fails when the page and the docstrings differ.
"""

from __future__ import annotations

import ast
from pathlib import Path

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "design.md"
#: The wings in the order of the path; the packages of each follow in the order in which data passes them.
WINGS = {
    "base": ("core", "lake", "zookeeper"),
    "ingest": ("source", "mask", "imports", "capture"),
    "landing": (),
    "payloads": ("formats", "decode"),
    "transform": ("reconcile", "redecode", "events", "state", "spark"),
    "serve": ("read", "changes", "sql", "consume", "outputs", "iceberg"),
    "operate": ("cycle", "maintenance", "quality", "verification", "status", "alerts", "report", "lineage", "tracing"),
    "config": (),
}
_START, _END = "<!-- packages: written by python -m tools.package_map -->\n", "<!-- end of packages -->\n"


def build_map() -> str:
    """Return the table of wings and packages as Markdown."""
    rows = ["| package of `lib/dblake` | holds |", "| --- | --- |"]
    for wing, packages in WINGS.items():
        rows.append(f"| **`{wing}/`** | {_first_sentence(wing)} |")
        rows += [f"| `{wing}/{package}/` | {_first_sentence(f'{wing}/{package}')} |" for package in packages]
    return "\n".join(rows) + "\n"


def replace_map(page: str) -> str:
    """Return the page with the current map between its two marks."""
    before, _, rest = page.partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}{build_map()}{_END}{after}"


def _first_sentence(folder: str) -> str:
    docstring = ast.get_docstring(ast.parse((HOME / "lib" / "dblake" / folder / "__init__.py").read_text("utf-8")))
    assert docstring, folder
    first = docstring.split("\n\n")[0].replace("\n", " ").removesuffix(".")
    return first.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(replace_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
