"""Reads a statement of the log word by word.

Below ``ddl``, which classifies statements. The tokenizer is ours: sqlglot's for MySQL drops executable comments
(``/*!40000 … */``), knows no NO_BACKSLASH_ESCAPES, and takes 40 MiB and 0.6 s to import (decision 8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Name = tuple[str, str]
"""Schema and table."""

_TOKEN = r"""
    (?P<skip>\s+|/\*(?!M?!).*?\*/|--(?=\s|$)[^\n]*|\#[^\n]*|/\*M?!\d*|\*/)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<double>"{0}")
  | (?P<string>'{1}')
  | (?P<word>[\w$@]+)
  | (?P<sign>.)
"""  # noqa: S105 - tokens of SQL
_ESCAPED = (r'[^"\\]*(?:(?:\\.|"")[^"\\]*)*', r"[^'\\]*(?:(?:\\.|'')[^'\\]*)*")
_PLAIN = (r'[^"]*(?:""[^"]*)*', r"[^']*(?:''[^']*)*")
_TOKENS = {
    escapes: re.compile(_TOKEN.format(*parts), re.VERBOSE | re.DOTALL)
    for escapes, parts in ((True, _ESCAPED), (False, _PLAIN))
}


class Words:
    """A statement word by word: upper case if unquoted, else unchanged; no comments but those that servers execute."""

    def __init__(self, text: str, default_schema: str, *, escapes: bool) -> None:
        self._tokens = self._scan(text, escapes)
        self._default = default_schema
        self._ahead: list[tuple[str, str]] = []

    @staticmethod
    def _scan(text: str, escapes: bool) -> Iterator[tuple[str, str]]:
        for match in _TOKENS[escapes].finditer(text):
            if match.lastgroup != "skip":
                yield str(match.lastgroup), match[0]

    def _token(self) -> tuple[str, str]:
        return self._ahead.pop() if self._ahead else next(self._tokens, ("", ""))

    def next(self) -> str:
        """Consume and return the next word, "" at the end."""
        kind, text = self._token()
        return text.upper() if kind == "word" else text

    def peek(self) -> str:
        """Return the next word without consuming it, "" at the end."""
        kind, text = self._token()
        self._ahead.append((kind, text))
        return text.upper() if kind == "word" else text

    def skip(self, words: frozenset[str]) -> None:
        """Consume any number of these words."""
        while self.peek() in words:
            self.next()

    def skip_value(self) -> str:
        """Consume an option's value, with "=" before it or not, and return its first word."""
        if self.peek() == "=":
            self.next()
        return self.next()

    def skip_clause(self) -> None:
        """Consume everything up to the comma that ends a clause of ALTER TABLE, and that."""
        depth = 0
        while (word := self.next()) and (word != "," or depth > 0):
            depth += (word == "(") - (word == ")")

    def find(self, *words: str) -> str:
        """Consume everything up to the first of these words, and that; returns it, "" if none follows."""
        while (word := self.next()) not in ("", *words):
            pass
        return word

    def read_name(self) -> Name:
        """Consume a table's name; it is of the default schema unless qualified."""
        first = self._name_part()
        if self.peek() != ".":
            return self._default, first
        self.next()
        return first, self._name_part()

    def read_names(self) -> tuple[Name, ...]:
        """Consume table names with commas between."""
        names = [self.read_name()]
        while self.peek() == ",":
            self.next()
            names.append(self.read_name())
        return tuple(names)

    def _name_part(self) -> str:
        kind, text = self._token()
        if kind in ("quoted", "double"):
            quote = text[0]
            return text[1:-1].replace(quote * 2, quote)
        return text
