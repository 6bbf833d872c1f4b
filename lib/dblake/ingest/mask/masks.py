"""Masks: masking rules applied to schemas, and what a masked table may land.

Guarantees:

- In the landed schema a masked column has a text type, or is missing.
- A rule sees only canonical text, so the mask of a value does not depend on the way the value arrives. NULL stays NULL.
- A table that may hold masked values under another column name does not land: it is rejected by name.

Rewriting rows is left to ``rows``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dblake.base.core.errors import Unsupported
from dblake.base.core.mask_rules import Rule, Rules, rules_of
from dblake.base.core.names import TableFilter, abbreviated, quote_part, split_qualified
from dblake.base.core.schema import TableSchema
from dblake.ingest.mask.key_cipher import KeyCipher

_KEY_FINGERPRINT = b"dblake: which key"
_FINGERPRINT_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Masking:
    """The masking of one table: ``schema`` is what lands; ``rules`` has the rule of each masked column."""

    schema: TableSchema
    rules: Mapping[str, Rule]
    key: bytes

    @property
    def masks_key(self) -> bool:
        """True if a rule applies to a column of the primary key."""
        return any(name in self.rules for name in self.schema.primary_key)

    def mask_value(self, rule: Rule, text: str) -> str:
        """Return what lands instead of a value: HMAC-SHA256 in hexadecimal digits, or its first characters.

        Not for columns that are dropped.
        """
        if rule.does == "truncate":
            return text[: rule.length]
        return hmac.digest(self.key, text.encode(), "sha256").hex()


class Masks:
    """All masking rules of one source. ``text`` is the source's name of the type of unlimited text."""

    def __init__(self, rules: Rules, key: bytes, *, text: str) -> None:
        self._rules, self._key, self._text = rules, key, text
        self._columns: dict[str, frozenset[str]] | None = None

    def set_tables(self, tables: Sequence[TableSchema]) -> None:
        """Record the columns of the captured tables at capture's start; later calls change nothing."""
        if self._columns is None:
            self._columns = {table.table: frozenset(table.names) for table in tables}

    def faults(self, tables: Sequence[TableSchema]) -> list[str]:
        """Return the faults of the rules for the captured tables: unknown tables or columns, contradictions, keys."""
        faults = []
        for pattern, columns in self._rules.items():
            matching = [t for t in tables if TableFilter([pattern])(*split_qualified(t.table))]
            if not matching:
                faults.append(f"no captured table matches {pattern}")
            faults += [f"table {t.table} has no column {quote_part(c)}" for t in matching for c in columns
                       if c not in t.names]
        for table in tables:
            faults += self._faults_of(table)
        return faults

    def _faults_of(self, table: TableSchema) -> list[str]:
        matching = [columns for pattern, columns in self._rules.items()
                    if TableFilter([pattern])(*split_qualified(table.table))]
        contradictions = [f"two patterns differ about {table.table}.{quote_part(c)}" for c in table.names
                          if len({columns[c] for columns in matching if c in columns}) > 1]
        rules = rules_of(self._rules, table.table)
        return contradictions + [f"{table.table}.{quote_part(c)} is of the primary key, which can be hashed only"
                                 for c in table.primary_key if c in rules and rules[c].does != "hash"]

    def masking_of(self, schema: TableSchema) -> Masking | None:
        """Return how rows of this schema are masked; None if they are not.

        Raises Unsupported if a column may hold masked values under another name, or if a key column is not hashed.
        """
        rules = rules_of(self._rules, schema.table)
        if not rules:
            return None
        self._require_unambiguous(schema, rules)
        columns = tuple(
            replace(column, type=self._text) if column.name in rules else column for column in schema.columns
            if column.name not in rules or rules[column.name].does != "drop"
        )
        present = {name: rule for name, rule in rules.items() if name in schema.names}
        return Masking(TableSchema(schema.table, columns), present, self._key)

    def _require_unambiguous(self, schema: TableSchema, rules: Mapping[str, Rule]) -> None:
        missing = [quote_part(name) for name in rules if name not in schema.names]
        initial_columns = (self._columns or {}).get(schema.table, frozenset[str]())
        # A masked column may be missing if every other column existed at the start: it is not added yet, or dropped.
        # A column that did not exist may hold the masked values under another name.
        if missing and not initial_columns.issuperset(schema.names):
            raise Unsupported(
                f"table {schema.table} lacks {abbreviated(missing)}, which `mask` names, and has columns that did not"
                " exist when capture started: one of them may hold the values to be masked",
                next_step="name the columns in `mask` as they are called now; if the log still has rows from before"
                " the change, capture --accept-gap starts after them",
            )
        if cut := [quote_part(name) for name in schema.primary_key if name in rules and rules[name].does != "hash"]:
            raise Unsupported(
                f"table {schema.table}: {abbreviated(cut)} is of the primary key, which can be hashed only",
                next_step="set its rule in `mask` to hash",
            )

    def fingerprint(self, column: str, table: str) -> str:
        """Return a suffix for a column's saved type that changes with its rule and its key; "" without a rule."""
        rule = rules_of(self._rules, table).get(column)
        if rule is None:
            return ""
        key = ""
        if rule.does == "hash":
            key = hmac.digest(self._key, _KEY_FINGERPRINT, "sha256").hex()[:_FINGERPRINT_DIGITS]
        return " ".join(filter(None, ("", "masked:", str(rule), key)))

    def encrypts_keys(self, table: str) -> bool:
        """Return True if progress documents hold the table's keys encrypted: any hashed column may be of its key."""
        return any(rule.does == "hash" for rule in rules_of(self._rules, table).values())

    def encrypt_key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return key values as progress documents hold them; see KeyCipher."""
        return tuple(self._cipher.encrypt(value) for value in values)

    def decrypt_key(self, table: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the key values of ``encrypt_key``. Raises Unsupported if another key encrypted them."""
        try:
            return tuple(self._cipher.decrypt(value) for value in values)
        except ValueError as error:
            raise Unsupported(
                f"table {table}: its key is masked, and the dump's progress was encrypted with another `mask.key`",
                next_step="cancel the dump and start it again",
            ) from error

    @cached_property
    def _cipher(self) -> KeyCipher:
        return KeyCipher(self._key)
