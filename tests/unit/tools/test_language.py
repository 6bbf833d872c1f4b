"""The language check: which words, sentences and names it rejects, and that the repository is free of them."""

from __future__ import annotations

import pytest

from tools.docstrings import find_unclear
from tools.language import check_tree, find_rejected


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("a.py", "def told(x): return x\n", ["told"]),
        ("a.py", "class ToldTwice: pass\n", ["Told"]),
        ("a.py", "unfolded_rows = 1  # folded\n", []),
        ("a.py", '"""Rows that nobody reads."""\n', ["nobody"]),
        ("a.py", "x = 1  # is looked\n", []),
        ("a.md", "The log is looked\nat again.\n", ["looked at"]),
        ("a.py", "x = 1\n# The log is looked\n# at again.\n", ["looked at"]),
        ("a.py", "x = 1  # is looked\ny = 2\nz = 3  # at\n", []),
        ("a.py", '"""Rows are\n    by\n    itself."""\n', ["by itself"]),
        ("a.md", "A retry makes good what the run took in.\n", ["makes good", "took in"]),
        ("a.md", "It has come to its end, as it must be.\n", ["has come to", "as it must be"]),
        ("conf.yaml", "# lists the keys asked\n# for\n", ["asked for"]),
        ("a.md", "Capture resumes after a failover.\n", []),
        ("conf.yaml", "# how often it goes on with it\n", ["goes on with"]),
    ],
)
def test_language_check_finds_rejected_words(file: str, text: str, words: list[str]) -> None:
    assert [finding.word for finding in find_rejected(file, text)] == words


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (f'"""{"word " * 29}word."""\n', []),
        (f'"""{"word " * 30}word."""\n', ["sentence"]),
        (f'"""{"word " * 20}\nword: {"word " * 10}."""\n', ["sentence"]),
        (f'"""{"word " * 20}word. {"word " * 20}word."""\n', []),
        (f'"""{"word " * 20}word:\n\n- {"word " * 20}\n- {"word " * 20}\n"""\n', []),
        (f'"""A table has no sentences.\n\n===\n{"word " * 40}\n===\n"""\n', []),
        ('"""Return the rows of a table, and those\nof its ledger."""\n', ["headless"]),
        ('"""Return the rows, some of which are deleted."""\n', ["headless"]),
        ('class Closer:\n    def close(self):\n        """Close it."""\n', ["phrase"]),
        ("for found in rows:\n    print(found)\n", ["name"]),
        ("def read(wanted, *, given=None): pass\n", ["name", "name"]),
        ("changed_tables = known(rows.found)\n", []),
    ],
)
def test_docstring_check_finds_broken_rules(text: str, rules: list[str]) -> None:
    assert [rule for rule, _, _ in find_unclear(text)] == rules


def test_language_of_repository_has_no_finding() -> None:
    assert list(map(str, check_tree())) == []
