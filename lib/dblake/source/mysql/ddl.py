"""What a statement in the log means for captured tables, as far as its words tell.

Rows come as rows; statements change tables' shape, empty them, or steer transactions. Promises to name every table
such a statement is about, and never to take one that may change rows for one that does not: what it cannot tell, it
says. Triggers and cascades of a row change that was logged as a statement are not seen here; that ``binlog_format`` is
ROW is preflight's to see to.
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
"""
_ESCAPED = (r'[^"\\]*(?:(?:\\.|"")[^"\\]*)*', r"[^'\\]*(?:(?:\\.|'')[^'\\]*)*")
_PLAIN = (r'[^"]*(?:""[^"]*)*', r"[^']*(?:''[^']*)*")
_TOKENS = {
    escapes: re.compile(_TOKEN.format(*parts), re.VERBOSE | re.DOTALL)
    for escapes, parts in ((True, _ESCAPED), (False, _PLAIN))
}


class Means(Enum):
    """What a statement does."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    XA_START = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()
    DDL = auto()
    """Changes the shape or the rows of ``tables`` without row events; of a whole schema if none is named."""
    TRUNCATE = auto()
    """Empties ``tables``, or removes them with their rows."""
    ROWS = auto()
    """Changes rows: of ``tables``, or of tables that cannot be told."""
    NOTHING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement judged. ``xa`` is the transaction's name where it is about one.

    ``rewrites`` are those of ``tables`` whose rows may be others after it than row events have told, ``gone`` those
    whose name no table has any more.
    """

    means: Means
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
"""Words that begin those parts of ALTER TABLE after which rows may be others than row events have told."""
_ADDS_NO_COLUMN = frozenset({
    "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "CONSTRAINT", "FOREIGN", "PRIMARY", "CHECK",
    "PARTITION", "PERIOD", "SYSTEM",
})  # fmt: skip
_BEFORE_COLUMN = frozenset({"COLUMN", "IF", "EXISTS"})
_BEFORE_NAME = frozenset({"IF", "NOT", "EXISTS", "INTO", "IGNORE", "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK"})


def judge(query: Query) -> Statement:
    """What a statement in the log means."""
    if query.text is None:
        return Statement(Means.UNKNOWN)
    words = _Words(query.text, query.default_schema, escapes=not query.sql_mode & _NO_BACKSLASH_ESCAPES)
    verb = words.next()
    if verb == "":
        return Statement(Means.NOTHING)
    if verb in _VERBS:
        return _VERBS[verb](words)
    if verb in _HARMLESS:
        return Statement(Means.NOTHING)
    if verb in _ROW_VERBS or verb == "(":
        return Statement(Means.ROWS)
    return Statement(Means.UNKNOWN)


class _Words:
    """A statement word by word: upper case if bare, else as it stands; comments are out, unless they are executed."""

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
        """The next word, "" at the end."""
        kind, text = self._token()
        return text.upper() if kind == "word" else text

    def peek(self) -> str:
        kind, text = self._token()
        self._ahead.append((kind, text))
        return text.upper() if kind == "word" else text

    def skip(self, words: frozenset[str]) -> None:
        """Passes over any number of these."""
        while self.peek() in words:
            self.next()

    def find(self, *wanted: str) -> str:
        """Goes on to the first of these words, and past it; "" if none comes."""
        while (word := self.next()) not in ("", *wanted):
            pass
        return word

    def name(self) -> Name:
        """A table's name, of the default schema unless it says which."""
        first = self._part()
        if self.peek() != ".":
            return self._default, first
        self.next()
        return first, self._part()

    def names(self) -> tuple[Name, ...]:
        """Names with commas between."""
        found = [self.name()]
        while self.peek() == ",":
            self.next()
            found.append(self.name())
        return tuple(found)

    def _part(self) -> str:
        kind, text = self._token()
        if kind in ("quoted", "double"):
            quote = text[0]
            return text[1:-1].replace(quote * 2, quote)
        return text


def _begin(_: _Words) -> Statement:
    return Statement(Means.BEGIN)


def _commit(_: _Words) -> Statement:
    return Statement(Means.COMMIT)


def _rollback(words: _Words) -> Statement:
    word = words.next()
    return Statement(Means.ROLLBACK_TO if word in ("TO", "WORK") and words.peek() else Means.ROLLBACK)


def _start(words: _Words) -> Statement:
    return Statement(Means.BEGIN if words.next() == "TRANSACTION" else Means.NOTHING)


def _xa(words: _Words) -> Statement:
    verb = words.next()
    means = {
        "START": Means.XA_START, "BEGIN": Means.XA_START, "COMMIT": Means.XA_COMMIT, "ROLLBACK": Means.XA_ROLLBACK,
        "END": Means.NOTHING,
    }.get(verb, Means.UNKNOWN)  # fmt: skip
    # The log spells names X'…',X'…',1: words, strings and commas.
    name = ""
    while (part := words.next()) and part not in ("ONE", "JOIN", "RESUME"):
        name += part.lower() if part.startswith("'") else part
    return Statement(means, xa=name)


def _truncate(words: _Words) -> Statement:
    words.skip(frozenset({"TABLE"}))
    return Statement(Means.TRUNCATE, (words.name(),))


def _create(words: _Words) -> Statement:
    replaces = words.peek() == "OR"
    kind, temporary = _object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(Means.DDL, (words.name(),))
    if kind != "TABLE" or temporary:
        return Statement(Means.NOTHING)
    words.skip(_BEFORE_NAME)
    table = (words.name(),)
    # With rows as rows, the SELECT has gone from the statement and its rows follow.
    if words.find("SELECT"):
        return Statement(Means.ROWS, table)
    return Statement(Means.TRUNCATE if replaces else Means.DDL, table)


def _alter(words: _Words) -> Statement:
    kind, _ = _object(words)
    if kind != "TABLE":
        return Statement(Means.NOTHING)
    words.skip(_BEFORE_NAME)
    altered = words.name()
    rewrites: list[Name] = []
    gone: tuple[Name, ...] = ()
    while verb := words.find(*_CLAUSES):
        named = _rewritten_by(verb, words, altered)
        rewrites += named
        if verb == "RENAME" and named and altered not in named:
            gone = (altered,)
    return Statement(Means.DDL, _once(altered, *rewrites), rewrites=_once(*rewrites), gone=gone)


def _rewritten_by(verb: str, words: _Words, altered: Name) -> list[Name]:
    """The tables that a clause of ALTER TABLE leaves with rows no event has told of.

    Not that of a column whose type changes: that shows.
    """
    follows = words.peek()
    if verb == "ADD":
        # Also where all it adds is NULLs: a column of that name may have been dropped just before.
        return [] if follows in _ADDS_NO_COLUMN else [altered]
    if verb == "CHANGE":
        words.skip(_BEFORE_COLUMN)
        before, after = words.name(), words.name()
        return [] if before[1].lower() == after[1].lower() else [altered]
    if verb == "RENAME" and follows not in ("COLUMN", "INDEX", "KEY"):
        words.skip(frozenset({"TO", "AS", "="}))
        return [words.name()]
    if verb == "RENAME":
        return [altered] if follows == "COLUMN" else []
    if verb == "EXCHANGE" or (verb == "CONVERT" and follows in ("PARTITION", "TABLE")):
        if follows == "PARTITION":
            words.find("TABLE")
        else:
            words.next()
        return [altered, words.name()]
    return [altered] if follows in ("PARTITION", "TABLESPACE") else []


def _drop(words: _Words) -> Statement:
    kind, temporary = _object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(Means.DDL, (words.name(),))
    if kind in ("DATABASE", "SCHEMA"):
        return Statement(Means.DDL)
    if kind not in ("TABLE", "TABLES") or temporary:
        return Statement(Means.NOTHING)
    words.skip(_BEFORE_NAME)
    return Statement(Means.TRUNCATE, words.names())


def _rename(words: _Words) -> Statement:
    if words.next() not in ("TABLE", "TABLES"):
        return Statement(Means.NOTHING)
    words.skip(_BEFORE_NAME)
    left: list[Name] = [words.name()]
    filled: list[Name] = []
    while word := words.find("TO", ","):
        (filled if word == "TO" else left).append(words.name())
    gone = (name for name in left if name not in filled)
    return Statement(Means.DDL, _once(*left, *filled), rewrites=_once(*filled), gone=_once(*gone))


def _insert(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    return Statement(Means.ROWS, (words.name(),))


def _update(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    table = words.name()
    return Statement(Means.ROWS, (table,) if words.next() == "SET" else ())


def _delete(words: _Words) -> Statement:
    words.skip(_BEFORE_NAME)
    if words.next() != "FROM":
        return Statement(Means.ROWS)
    table = words.name()
    follows = words.next()
    if follows in ("", ";"):
        # How a server tells its replicas that a MEMORY table is empty after a restart.
        return Statement(Means.TRUNCATE, (table,))
    return Statement(Means.ROWS, (table,) if follows in ("WHERE", "ORDER", "LIMIT") else ())


def _once(*names: Name) -> tuple[Name, ...]:
    return tuple(dict.fromkeys(names))


def _object(words: _Words) -> tuple[str, bool]:
    """Goes on past the word for what a CREATE, ALTER or DROP is about; that word, and whether it is temporary."""
    temporary = False
    while (word := words.next()) not in _OBJECTS:
        temporary |= word == "TEMPORARY"
        if word == "":
            break
    return word, temporary


_VERBS: dict[str, Callable[[_Words], Statement]] = {
    "BEGIN": _begin, "COMMIT": _commit, "ROLLBACK": _rollback, "START": _start, "XA": _xa, "TRUNCATE": _truncate,
    "CREATE": _create, "ALTER": _alter, "DROP": _drop, "RENAME": _rename, "INSERT": _insert, "REPLACE": _insert,
    "UPDATE": _update, "DELETE": _delete,
}  # fmt: skip
