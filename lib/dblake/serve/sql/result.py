"""An engine as the command line uses it, and the result of a query: columns, and rows as text or as JSON, as they come.

Place: between the engines and what prints. Guarantee: no value passes through a Python type that cannot hold it; the
engine converts each to text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

TextRow = Sequence[str | None]


class QueryResult(Protocol):
    """Rows that are computed while they are read, once. Reading raises UsageError if the query fails."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the result's columns."""

    def text_rows(self, most: int | None = None) -> Iterator[TextRow]:
        """Yield the values of each row, or of each of the first ``most`` rows, as text; None is NULL."""

    def json_rows(self) -> Iterator[str]:
        """Yield each row as a JSON object."""


@dataclass(frozen=True)
class TextResult:
    """A small result whose values are texts."""

    columns: Sequence[str]
    rows: Sequence[TextRow]

    def text_rows(self, most: int | None = None) -> Iterator[TextRow]:
        """Yield the rows, or the first ``most`` of them."""
        yield from self.rows[:most]

    def json_rows(self) -> Iterator[str]:
        """Yield each row as a JSON object."""
        for row in self.rows:
            yield json.dumps(dict(zip(self.columns, row, strict=True)), ensure_ascii=False)


class Engine(Protocol):
    """What the command line needs of an engine."""

    def query(self, statement: str) -> QueryResult:
        """Return the statement's result. Raises UsageError or StateError."""

    def warnings(self) -> Sequence[str]:
        """Return what a reader of the newest result should know."""

    def interrupt(self) -> None:
        """Stop the running query, from another thread."""

    def progress(self) -> float | None:
        """Return the share of the running query that is done; None if it is unknown."""

    def words(self) -> Iterable[str]:
        """Return the names of tables and columns, for completion."""

    def describe_tables(self) -> str:
        """Return in one line which tables there are, as of when."""
