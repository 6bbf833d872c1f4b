"""Run each component's tests once, save the results, and write them to ``docs/limits.md``.

``./spark-submit.sh tests --components`` runs it, by hand: minutes for each. Names of components, as arguments, restrict
the run to them; the others keep their last result. Exits with 1 if a test failed, or none ran.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian import Unavailable
from tests.support.outcomes import HOME, Outcome, read_outcomes, replace_block, row_of, run_tests, save_outcomes

_HERE = Path(__file__).parent
_PAGE, _RESULTS = HOME / "docs" / "limits.md", _HERE / "newest.json"
_BEGIN, _END = "<!-- components: written by tests/components/run.py -->\n", "<!-- end of components -->"


@dataclass(frozen=True, slots=True)
class Component:
    """One component: its title, the program whose version its run prints, and its file of tests."""

    title: str
    program: str
    file: str


COMPONENTS = (
    Component("Iceberg readers", "DuckDB", "test_iceberg_readers.py"),
    Component("Image", "buildah", "test_image.py"),
    Component("New user on Debian 12", "dblake", "test_new_user.py"),
    Component("Helm chart", "helm", "test_helm.py"),
)


def build_table(results: dict[str, Outcome]) -> str:
    """Return the table as Markdown: a row per component."""
    lines = ["| component | program | version | run on | passed | failed | skipped |", "| --- " * 7 + "|"]
    lines += [row_of([each.title, each.program], results.get(each.title)) for each in COMPONENTS]
    return "\n".join(lines) + "\n"


def read_table() -> str:
    """Return the table of the saved results."""
    return build_table(read_outcomes(_RESULTS))


def main() -> int:
    """Run the components named as arguments, or all; return the exit code."""
    titles = [each.title for each in COMPONENTS]
    if unknown := set(sys.argv[1:]) - set(titles):
        print(f"no such component: {', '.join(sorted(unknown))}. Next: use {', '.join(titles)}", file=sys.stderr)
        return 64
    chosen = [each for each in COMPONENTS if not sys.argv[1:] or each.title in sys.argv[1:]]
    results = read_outcomes(_RESULTS)
    for each in chosen:
        print(f"== {each.title}", flush=True)
        try:
            results[each.title] = run_tests(each.title, each.program, [str(_HERE / each.file)])
        except Unavailable as why:
            print(f"{each.title} cannot be run: {why}", file=sys.stderr)
            results.pop(each.title, None)
        save_outcomes(_RESULTS, results, titles)
    replace_block(_PAGE, _BEGIN, _END, build_table(results))
    ran = [results.get(each.title) for each in chosen]
    return 0 if all(result and result.passed and not result.failed for result in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
