"""What is masked, and how: from the rules of the configuration to one table as landing is to know it.

Promises: a masked column is one of text in the schema that is landed, or is not there at all; a column is masked the
same whichever way its value comes, for a rule sees nothing but canonical text; NULL stays NULL; a table that may hold
masked values under another name is refused by name rather than landed. Rewriting rows is left to ``rows``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dblake.core.errors import Unsupported
from dblake.core.names import TableFilter, abbreviated, quote_part, split_qualified
from dblake.core.schema import TableSchema

_SEALS = b"dblake: keys of dumps under way"
_TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a column: it is dropped, hashed with the key, or cut to its first ``length`` characters."""

    does: Literal["drop", "hash", "truncate"]
    length: int = 0

    def __str__(self) -> str:
        return f"{self.does} {self.length}" if self.does == "truncate" else self.does


Rules = Mapping[str, Mapping[str, Rule]]
"""By pattern of tables, as in ``source.tables``, and by column."""


def rules_of(rules: Rules, table: str) -> dict[str, Rule]:
    """The rules of one table by column. Of two patterns that mean it, the later one counts."""
    name = split_qualified(table)
    return {c: rule for pattern, columns in rules.items() if TableFilter([pattern])(*name)
            for c, rule in columns.items()}


@dataclass(frozen=True, slots=True)
class Masking:
    """One table: ``schema`` is what landing is told, ``rules`` are those of the columns it has."""

    schema: TableSchema
    rules: Mapping[str, Rule]
    key: bytes

    @property
    def of_key(self) -> bool:
        """True if it masks a column of the primary key."""
        return any(name in self.rules for name in self.schema.primary_key)

    def value(self, rule: Rule, text: str) -> str:
        """What lands in place of a value. Not for columns that are dropped."""
        if rule.does == "truncate":
            return text[: rule.length]
        return hmac.digest(self.key, text.encode(), "sha256").hex()


class Masks:
    """All rules of one source. ``text`` is how the source spells the type of any text."""

    def __init__(self, rules: Rules, key: bytes, *, text: str) -> None:
        self._rules, self._key, self._text = rules, key, text
        self._there: dict[str, frozenset[str]] | None = None

    def look(self, tables: Sequence[TableSchema]) -> None:
        """Takes in how the captured tables stand; the first look counts."""
        if self._there is None:
            self._there = {table.table: frozenset(table.names) for table in tables}

    def wrong(self, tables: Sequence[TableSchema]) -> list[str]:
        """What the rules say that cannot be, held against the captured tables as they stand."""
        wrong = []
        for pattern, columns in self._rules.items():
            meant = [t for t in tables if TableFilter([pattern])(*split_qualified(t.table))]
            if not meant:
                wrong.append(f"no captured table matches {pattern}")
            wrong += [f"table {t.table} has no column {quote_part(c)}" for t in meant for c in columns
                      if c not in t.names]
        for table in tables:
            said = [columns for pattern, columns in self._rules.items()
                    if TableFilter([pattern])(*split_qualified(table.table))]
            wrong += [f"two patterns differ about {table.table}.{quote_part(c)}" for c in table.names
                      if len({columns[c] for columns in said if c in columns}) > 1]
            rules = rules_of(self._rules, table.table)
            wrong += [f"{table.table}.{quote_part(c)} is of the primary key, which can be hashed only"
                      for c in table.primary_key if c in rules and rules[c].does != "hash"]
        return wrong

    def of(self, schema: TableSchema) -> Masking | None:
        """How rows of this schema are masked; None if they are not. Raises Unsupported if that is in doubt."""
        rules = rules_of(self._rules, schema.table)
        if not rules:
            return None
        self._refuse_doubt(schema, rules)
        columns = tuple(
            replace(column, type=self._text) if column.name in rules else column for column in schema.columns
            if column.name not in rules or rules[column.name].does != "drop"
        )
        here = {name: rule for name, rule in rules.items() if name in schema.names}
        return Masking(TableSchema(schema.table, columns), here, self._key)

    def _refuse_doubt(self, schema: TableSchema, rules: Mapping[str, Rule]) -> None:
        gone = [quote_part(name) for name in rules if name not in schema.names]
        there = (self._there or {}).get(schema.table, frozenset[str]())
        # Without a masked column, but with none that was not there beside it: not added yet, or dropped. Any other
        # column may hold its values under another name.
        if gone and not there.issuperset(schema.names):
            raise Unsupported(
                f"table {schema.table} comes without {abbreviated(gone)}, which `mask` names, and with columns that it did"
                " not have when capture started: one of them may hold what is to be masked",
                next_step="let `mask` name the columns as they are called now; if the log still has rows of before,"
                " capture --accept-gap starts behind them",
            )
        if cut := [quote_part(name) for name in schema.primary_key if name in rules and rules[name].does != "hash"]:
            raise Unsupported(
                f"table {schema.table}: {abbreviated(cut)} is of the primary key, which can be hashed only",
                next_step="set its rule in `mask` to hash",
            )

    def standing(self, column: str, table: str) -> str:
        """What is said of a column's masking in capture's notes, so that another rule or key is a change of it."""
        rule = rules_of(self._rules, table).get(column)
        if rule is None:
            return ""
        told = hmac.digest(self._key, b"dblake: which key", "sha256").hex()[:8] if rule.does == "hash" else ""
        return " ".join(filter(None, ("", "masked:", str(rule), told)))

    def seals(self, table: str) -> bool:
        """True if keys of the table are not written down as they are: any of its hashed columns may be the key's."""
        return any(rule.does == "hash" for rule in rules_of(self._rules, table).values())

    def seal(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Key values so that only who has the mask's key can read them: they stand in capture's notes.

        Each is enciphered with HMAC-SHA256 as the stream, starting from its own tag (the construction of SIV), so
        that no state is needed and a value that was tampered with, or sealed with another key, is noticed.
        """
        return tuple(self._sealed(value.encode()).hex() for value in values)

    def unseal(self, table: str, values: tuple[str, ...]) -> tuple[str, ...]:
        """The key values. Raises Unsupported if another key sealed them."""
        out = []
        for value in values:
            try:
                given = bytes.fromhex(value)
            except ValueError:
                given = b""
            raw = self._streamed(given[:_TAG_BYTES], given[_TAG_BYTES:])
            if not given or not hmac.compare_digest(self._tag(raw), given[:_TAG_BYTES]):
                raise Unsupported(
                    f"table {table}: its key is masked, and where its dump was to go on was noted with another key",
                    next_step="cancel the dump and start it anew",
                )
            out.append(raw.decode())
        return tuple(out)

    def _sealed(self, raw: bytes) -> bytes:
        tag = self._tag(raw)
        return tag + self._streamed(tag, raw)

    def _tag(self, raw: bytes) -> bytes:
        return hmac.digest(self._part("tag"), raw, "sha256")[:_TAG_BYTES]

    def _streamed(self, tag: bytes, raw: bytes) -> bytes:
        key = self._part("stream")
        blocks = [hmac.digest(key, tag + n.to_bytes(4), "sha256") for n in range((len(raw) + 31) // 32)]
        return bytes(a ^ b for a, b in zip(raw, b"".join(blocks), strict=False))

    def _part(self, name: str) -> bytes:
        return hmac.digest(self._key, _SEALS + b": " + name.encode(), "sha256")


def key_is_masked(table: str) -> Unsupported:
    """The refusal of rows asked for by a key that may not be written down."""
    return Unsupported(
        f"table {table}: its key is masked, so rows cannot be asked for by key", next_step="dump the whole table"
    )
