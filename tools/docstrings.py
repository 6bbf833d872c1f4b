"""Check the docstrings and names of lib, jobs and pipelines; ``tools.language`` runs this check with its own.

Four rules: a sentence has at most 30 words; "those of", "that of" and "of which" need a noun, so they are rejected; a
docstring is longer than one phrase; a name describes its value, which ``found`` does not. ``docstrings_backlog.toml``
lists, by rule, the files that are not rewritten yet. Remove a file there when it is clean; add none.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("lib/", "jobs/", "pipelines/")
SENTENCE, HEADLESS, PHRASE, NAME = "sentence", "headless", "phrase", "name"
RULES = {
    SENTENCE: "a sentence of more than 30 words",
    HEADLESS: "a relative clause without a noun",
    PHRASE: "a docstring of one phrase",
    NAME: "a name that does not describe its value",
}
_MAX_WORDS = 30
_MIN_CHARACTERS = 26
_NAMES = frozenset({"found", "known", "wanted", "place", "given", "held", "own"})

_BLOCKS = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s")
"""What separates paragraphs and items of a list."""
_SENTENCE_END = re.compile(r"(?<=[.!?])[)*`\"]*\s+")
_TABLE = re.compile(r"^\s*(?:\||===)", re.MULTILINE)
_WITHOUT_NOUN = re.compile(r"\b(?:those|that)\s+of\b|\bof\s+which\b", re.IGNORECASE)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def read_backlog() -> dict[str, frozenset[str]]:
    """Return the files that each rule does not cover yet."""
    listed = tomllib.loads(Path(__file__).with_name("docstrings_backlog.toml").read_text(encoding="utf-8"))
    return {rule: frozenset(listed.get(rule, [])) for rule in RULES}


def find_unclear(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line and text of every docstring and name in a Python file that breaks a rule."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Documented) and (docstring := ast.get_docstring(node)):
            line = node.body[0].lineno
            yield from ((rule, line, content) for rule, content in _check_docstring(docstring))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _NAMES:
            yield NAME, node.lineno, node.id
        elif isinstance(node, ast.arg) and node.arg in _NAMES:
            yield NAME, node.lineno, node.arg


def _check_docstring(docstring: str) -> Iterator[tuple[str, str]]:
    if len(docstring) < _MIN_CHARACTERS:
        yield PHRASE, docstring
    for match in _WITHOUT_NOUN.finditer(docstring):
        yield HEADLESS, docstring[max(0, match.start() - 30):match.end() + 40].replace("\n", " ")
    for block in _BLOCKS.split(docstring):
        for sentence in () if _TABLE.search(block) else _SENTENCE_END.split(block):
            if sum(bool(re.search(r"\w", word)) for word in sentence.split()) > _MAX_WORDS:
                yield SENTENCE, " ".join(sentence.split())
