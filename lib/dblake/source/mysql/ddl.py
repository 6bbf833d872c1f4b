"""Classifies statements of the log by their words: what each does to transactions and to which tables.

Rows arrive as rows events; statements change tables' schemas, empty tables, or steer transactions. Promises to name
every table of such a statement, and never to classify one that may change rows as harmless: what it cannot determine is
UNKNOWN, or ROWS of no named table. Triggers and cascades of a row change that was logged as a statement are not visible
here; preflight requires ``binlog_format=ROW``.

The tokenizer is ours: sqlglot's for MySQL drops executable comments (``/*!40000 … */``), knows no NO_BACKSLASH_ESCAPES,
and takes 40 MiB and 0.6 s to import (decision 8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from dblake.source.mysql.events import Query

Name = tuple[str, str]

_NO_BACKSLASH_ESCAPES = 1 << 20
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


class StatementKind(Enum):
    """The effect of a statement."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    XA_START = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()
    DDL = auto()
    """Changes the schema or the rows of ``tables`` without row events; of a whole database if none is named."""
    TRUNCATE = auto()
    """Empties ``tables``, or drops them with their rows."""
    ROWS = auto()
    """Changes rows: of ``tables``, or of tables that cannot be determined if there are none."""
    NOTHING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    """A classified statement. ``xa`` is the name of the XA transaction that it is about.

    ``rewrites`` are those of ``tables`` whose rows may change without row events, ``gone`` those whose name no table
    has afterwards.
    """

    kind: StatementKind
    tables: tuple[Name, ...] = ()
    xa: str = ""
    rewrites: tuple[Name, ...] = ()
    gone: tuple[Name, ...] = ()


_HARMLESS = frozenset({
    "GRANT", "REVOKE", "SET", "FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "INSTALL", "UNINSTALL", "SAVEPOINT",
    "RELEASE", "CACHE", "CHANGE", "PURGE", "RESET", "SHOW", "USE", "KILL",
})  # fmt: skip
_ROW_VERBS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "SELECT", "DO", "CALL", "EXECUTE"})
_OBJECTS = frozenset({
    "TABLE", "TABLES", "INDEX", "KEY", "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "DATABASE", "SCHEMA",
    "USER", "ROLE", "SERVER", "SEQUENCE", "TABLESPACE", "LOGFILE", "RESOURCE", "PACKAGE", "SYSTEM", "LIBRARY",
    "INSTANCE",
})  # fmt: skip
_CLAUSES = ("ADD", "CHANGE", "RENAME", "EXCHANGE", "CONVERT", "DROP", "TRUNCATE", "DISCARD", "IMPORT")
"""First words of the clauses of ALTER TABLE that may change rows without row events."""
_ADDS_NO_COLUMN = frozenset({
    "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "CONSTRAINT", "FOREIGN", "PRIMARY", "CHECK",
    "PARTITION", "PERIOD", "SYSTEM",
})  # fmt: skip
_BEFORE_COLUMN = frozenset({"COLUMN", "IF", "EXISTS"})
_BEFORE_NAME = frozenset({"IF", "NOT", "EXISTS", "INTO", "IGNORE", "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK"})


def classify(query: Query) -> Statement:
    """Return the classification of a statement of the log."""
    if query.text is None:
        return Statement(StatementKind.UNKNOWN)
    words = _Words(query.text, query.default_schema, escapes=not query.sql_mode & _NO_BACKSLASH_ESCAPES)
    verb = words.next()
    if verb == "":
        return Statement(StatementKind.NOTHING)
    if verb in _VERBS:
        return _VERBS[verb](words)
    if verb in _HARMLESS:
        return Statement(StatementKind.NOTHING)
    if verb in _ROW_VERBS or verb == "(":
        return Statement(StatementKind.ROWS)
    return Statement(StatementKind.UNKNOWN)


class _Words:
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


def _classify_begin(_: _Words) -> Statement:
    return Statement(StatementKind.BEGIN)


def _classify_commit(_: _Words) -> Statement:
    return Statement(StatementKind.COMMIT)


def _classify_rollback(words: _Words) -> Statement:
    word = words.next()
    return Statement(StatementKind.ROLLBACK_TO if word in ("TO", "WORK") and words.peek() else StatementKind.ROLLBACK)


def _classify_start(words: _Words) -> Statement:
    return Statement(StatementKind.BEGIN if words.next() == "TRANSACTION" else StatementKind.NOTHING)


def _classify_xa(words: _Words) -> Statement:
    verb = words.next()
    kind = {
        "START": StatementKind.XA_START, "BEGIN": StatementKind.XA_START, "COMMIT": StatementKind.XA_COMMIT,
        "ROLLBACK": StatementKind.XA_ROLLBACK, "END": StatementKind.NOTHING,
    }.get(verb, StatementKind.UNKNOWN)  # fmt: skip
    # Names in the log are X'…',X'…',1: words, strings and commas.
    name = ""
    while (part := words.next()) and part not in ("ONE", "JOIN", "RESUME"):
        name += part.lower() if part.startswith("'") else part
    return Statement(kind, xa=name)


def _classify_truncate(words: _Words) -> Statement:
    words.skip(frozenset({"TABLE"}))
    return Statement(StatementKind.TRUNCATE, (words.read_name(),))


def _classify_create(words: _Words) -> Statement:
    replaces = words.peek() == "OR"
    kind, is_temporary = _read_object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(StatementKind.DDL, (words.read_name(),))
    if kind != "TABLE" or is_temporary:
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    table = (words.read_name(),)
    # With binlog_format=ROW the statement is logged without its SELECT, and the rows follow as rows events.
    if words.find("SELECT"):
        return Statement(StatementKind.ROWS, table)
    return Statement(StatementKind.TRUNCATE if replaces else StatementKind.DDL, table)


def _classify_alter(words: _Words) -> Statement:
    kind, _ = _read_object(words)
    if kind != "TABLE":
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    altered = words.read_name()
    rewrites: list[Name] = []
    gone: tuple[Name, ...] = ()
    while verb := words.find(*_CLAUSES):
        rewritten = _rewritten_by(verb, words, altered)
        rewrites += rewritten
        if verb == "RENAME" and rewritten and altered not in rewritten:
            gone = (altered,)
    return Statement(StatementKind.DDL, _distinct(altered, *rewrites), rewrites=_distinct(*rewrites), gone=gone)


def _rewritten_by(verb: str, words: _Words, altered: Name) -> list[Name]:
    """Return the tables whose rows a clause of ALTER TABLE may change without row events.

    A change of a column's type is not among them: the catalog shows it.
    """
    follows = words.peek()
    if verb == "ADD":
        # Even if it adds NULLs only: a column of that name may have been dropped just before.
        return [] if follows in _ADDS_NO_COLUMN else [altered]
    if verb == "CHANGE":
        words.skip(_BEFORE_COLUMN)
        old, new = words.read_name(), words.read_name()
        return [] if old[1].lower() == new[1].lower() else [altered]
    if verb == "RENAME" and follows not in ("COLUMN", "INDEX", "KEY"):
        words.skip(frozenset({"TO", "AS", "="}))
        return [words.read_name()]
    if verb == "RENAME":
        return [altered] if follows == "COLUMN" else []
    if verb == "EXCHANGE" or (verb == "CONVERT" and follows in ("PARTITION", "TABLE")):
        if follows == "PARTITION":
            words.find("TABLE")
        else:
            words.next()
        return [altered, words.read_name()]
    return [altered] if follows in ("PARTITION", "TABLESPACE") else []


def _classify_drop(words: _Words) -> Statement:
    kind, is_temporary = _read_object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(StatementKind.DDL, (words.read_name(),))
    if kind in ("DATABASE", "SCHEMA"):
        return Statement(StatementKind.DDL)
    if kind not in ("TABLE", "TABLES") or is_temporary:
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    return Statement(StatementKind.TRUNCATE, words.read_names())


def _classify_rename(words: _Words) -> Statement:
    if words.next() not in ("TABLE", "TABLES"):
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    old: list[Name] = [words.read_name()]
    new: list[Name] = []
    while word := words.find("TO", ","):
        (new if word == "TO" else old).append(words.read_name())
    gone = (name for name in old if name not in new)
    return Statement(StatementKind.DDL, _distinct(*old, *new), rewrites=_distinct(*new), gone=_distinct(*gone))


def _classify_insert(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    return Statement(StatementKind.ROWS, (words.read_name(),))


def _classify_update(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    table = words.read_name()
    return Statement(StatementKind.ROWS, (table,) if words.next() == "SET" else ())


def _classify_delete(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    if words.next() != "FROM":
        return Statement(StatementKind.ROWS)
    table = words.read_name()
    follows = words.next()
    if follows in ("", ";"):
        # A server logs this for each MEMORY table, which is empty after a restart.
        return Statement(StatementKind.TRUNCATE, (table,))
    return Statement(StatementKind.ROWS, (table,) if follows in ("WHERE", "ORDER", "LIMIT") else ())


def _distinct(*names: Name) -> tuple[Name, ...]:
    return tuple(dict.fromkeys(names))


def _read_object(words: _Words) -> tuple[str, bool]:
    """Consume the kind of object that a CREATE, ALTER or DROP is about; returns it, and whether it is temporary."""
    is_temporary = False
    while (word := words.next()) not in _OBJECTS:
        is_temporary |= word == "TEMPORARY"
        if word == "":
            break
    return word, is_temporary


_VERBS: dict[str, Callable[[_Words], Statement]] = {
    "BEGIN": _classify_begin, "COMMIT": _classify_commit, "ROLLBACK": _classify_rollback, "START": _classify_start,
    "XA": _classify_xa, "TRUNCATE": _classify_truncate, "CREATE": _classify_create, "ALTER": _classify_alter,
    "DROP": _classify_drop, "RENAME": _classify_rename, "INSERT": _classify_insert, "REPLACE": _classify_insert,
    "UPDATE": _classify_update, "DELETE": _classify_delete,
}  # fmt: skip
