"""Masking rules as configured: the columns that are dropped, hashed or truncated, by table pattern.

Guarantee: values only; nothing here needs a database or a cipher, so every job can import it. ``masks`` applies the
rules to schemas, ``rows`` to rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import TableFilter, split_qualified


@dataclass(frozen=True, slots=True)
class Rule:
    """A column's rule: drop it, hash it with the key, or truncate it to its first ``length`` characters."""

    does: Literal["drop", "hash", "truncate"]
    length: int = 0

    def __str__(self) -> str:
        """Return the rule in the configuration's words, such as ``truncate 3``."""
        return f"{self.does} {self.length}" if self.does == "truncate" else self.does


Rules = Mapping[str, Mapping[str, Rule]]
"""By table pattern, as in ``source.tables``, and by column."""


def rules_of(rules: Rules, table: str) -> dict[str, Rule]:
    """Return the rules of one table by column. If two patterns match it, the later one wins."""
    name = split_qualified(table)
    return {column: rule for pattern, columns in rules.items() if TableFilter([pattern])(*name)
            for column, rule in columns.items()}


def key_is_masked(table: str) -> Unsupported:
    """Return the error for a request of rows by a key that must not be stored."""
    return Unsupported(
        f"table {table}: its key is masked, so rows cannot be requested by key", next_step="dump the whole table"
    )
