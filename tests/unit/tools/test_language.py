"""The language check: which words it rejects, and that the repository is free of them."""

from __future__ import annotations

import pytest

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


def test_language_of_repository_has_no_rejected_word() -> None:
    assert list(map(str, check_tree())) == []
