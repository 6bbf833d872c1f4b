"""Classifies statements of the log by their words: what each does to transactions and to which tables.

Rows arrive as rows events; statements change tables' schemas, empty tables, or steer transactions. Promises to name
every table of such a statement, and never to classify one that may change rows as harmless: what it cannot determine is
UNKNOWN, or ROWS of no named table. Triggers and cascades of a row change that was logged as a statement are not visible
here; preflight requires ``binlog_format=ROW``. ``sql_words`` reads the words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from dblake.ingest.source.mysql.events import Query
from dblake.ingest.source.mysql.sql_words import Name, Words

_NO_BACKSLASH_ESCAPES = 1 << 20


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
    has afterwards. ``dropped_schema`` is a database that is dropped with all its tables.
    """

    kind: StatementKind
    tables: tuple[Name, ...] = ()
    xa: str = ""
    rewrites: tuple[Name, ...] = ()
    gone: tuple[Name, ...] = ()
    dropped_schema: str = ""


_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_HARMLESS = frozenset({
    "GRANT", "REVOKE", "SET", "FLUSH", "ANALYZE", "OPTIMIZE", "CHECK", "INSTALL", "UNINSTALL", "SAVEPOINT",
    "RELEASE", "CACHE", "CHANGE", "PURGE", "RESET", "SHOW", "USE", "KILL",
})  # fmt: skip
_ROW_VERBS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "SELECT", "DO", "CALL", "EXECUTE"})
_OBJECTS = frozenset({
    "TABLE", "TABLES", "INDEX", "KEY", "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "DATABASE", "SCHEMA",
    "USER", "ROLE", "SERVER", "SEQUENCE", "TABLESPACE", "LOGFILE", "RESOURCE", "PACKAGE", "SYSTEM", "LIBRARY",
    "INSTANCE",
})  # fmt: skip
_KEEPS_ROWS = frozenset({"ALTER", "REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REMOVE",
                         "FORCE"})
"""First words of the clauses of ALTER TABLE that are known to keep all rows as they are; any other may change them."""
_OPTIONS = frozenset({
    "COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_PERSISTENT", "STATS_AUTO_RECALC",
    "STATS_SAMPLE_PAGES", "CHECKSUM", "DELAY_KEY_WRITE", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "PACK_KEYS",
    "COMPRESSION", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
    "PAGE_CHECKSUM", "TRANSACTIONAL", "COLLATE", "CHARSET", "LOCK", "ALGORITHM", "WAIT", "ENABLE", "DISABLE",
    "AUTOEXTEND_SIZE", "SET", "DIRECTORY",
})  # fmt: skip
"""Options of ALTER TABLE that keep all rows, each with one value."""
_KEEPING_ENGINES = frozenset({"INNODB", "MYISAM", "ARIA"})
_ADDS_NO_COLUMN = frozenset({
    "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "CONSTRAINT", "FOREIGN", "PRIMARY", "CHECK", "PARTITION",
})  # fmt: skip
_CONSTRAINTS = ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK")
_REMOVES_ROWS = frozenset({"PARTITION", "TABLESPACE", "SYSTEM", "PERIOD"})
_OPTION_PREFIXES = frozenset({"DEFAULT", "CHARACTER", "DATA", "INDEX", "NOWAIT", ","})
_BEFORE_NAME = frozenset({"IF", "NOT", "EXISTS", "INTO", "IGNORE", "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK"})


def classify(query: Query) -> Statement:
    """Return the classification of a statement of the log."""
    words = Words(query.text, query.default_schema, escapes=not query.sql_mode & _NO_BACKSLASH_ESCAPES)
    statement = _classify(words)
    # A name with a character that is not known may be any table's.
    names = (*statement.tables, *statement.rewrites, *statement.gone, statement.dropped_schema)
    return Statement(StatementKind.UNKNOWN) if any(_UNKNOWN in part for name in names for part in name) else statement


def _classify(words: Words) -> Statement:
    verb = words.next()
    if verb == "SET" and words.peek() == "STATEMENT":
        # MariaDB: SET STATEMENT variable = value, … FOR statement.
        words.find("FOR")
        return _classify(words)
    if verb == "":
        return Statement(StatementKind.NOTHING)
    if verb in _VERBS:
        return _VERBS[verb](words)
    if verb in _HARMLESS:
        return Statement(StatementKind.NOTHING)
    if verb in _ROW_VERBS or verb == "(":
        return Statement(StatementKind.ROWS)
    return Statement(StatementKind.UNKNOWN)


def _classify_begin(_: Words) -> Statement:
    return Statement(StatementKind.BEGIN)


def _classify_commit(_: Words) -> Statement:
    return Statement(StatementKind.COMMIT)


def _classify_rollback(words: Words) -> Statement:
    word = words.next()
    return Statement(StatementKind.ROLLBACK_TO if word in ("TO", "WORK") and words.peek() else StatementKind.ROLLBACK)


def _classify_start(words: Words) -> Statement:
    return Statement(StatementKind.BEGIN if words.next() == "TRANSACTION" else StatementKind.NOTHING)


def _classify_xa(words: Words) -> Statement:
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


def _classify_truncate(words: Words) -> Statement:
    words.skip(frozenset({"TABLE"}))
    return Statement(StatementKind.TRUNCATE, (words.read_name(),))


def _classify_create(words: Words) -> Statement:
    replaces = words.peek() == "OR"
    kind, is_temporary = _read_object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(StatementKind.DDL, (words.read_name(),))
    if kind in ("DATABASE", "SCHEMA") and replaces:
        return _dropped_schema(words)
    if kind != "TABLE" or is_temporary:
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    table = (words.read_name(),)
    # With binlog_format=ROW the statement is logged without its SELECT, and the rows follow as rows events.
    if words.find("SELECT"):
        return Statement(StatementKind.ROWS, table)
    return Statement(StatementKind.TRUNCATE if replaces else StatementKind.DDL, table)


def _classify_alter(words: Words) -> Statement:
    modifiers: list[str] = []
    kind, _ = _read_object(words, modifiers)
    if kind != "TABLE":
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    altered = words.read_name()
    # IGNORE deletes rows that violate a new key.
    rewrites: list[Name] = [altered] if "IGNORE" in modifiers else []
    gone: tuple[Name, ...] = ()
    while verb := words.next():
        if verb in _OPTION_PREFIXES:
            # Options follow one another without commas: DEFAULT CHARACTER SET x DATA DIRECTORY 'x'.
            continue
        if verb in _OPTIONS:
            words.skip_value()
            continue
        if verb == "ENGINE":
            if words.skip_value().strip("`'\"").upper() not in _KEEPING_ENGINES:
                rewrites.append(altered)
            continue
        rewritten = _rewritten_by(verb, words, altered)
        rewrites += rewritten
        if verb == "RENAME" and rewritten and altered not in rewritten:
            gone = (altered,)
        words.skip_clause()
    return Statement(StatementKind.DDL, _distinct(altered, *rewrites), rewrites=_distinct(*rewrites), gone=gone)


def _rewritten_by(verb: str, words: Words, altered: Name) -> list[Name]:
    """Return the tables whose rows a clause of ALTER TABLE may change without row events.

    Every clause that is not known to keep rows is one of them, MODIFY for instance: it may give NULLs another value, or
    a generated column another expression.
    """
    follows = words.peek()
    if verb in _KEEPS_ROWS or (verb == "PARTITION" and follows == "BY"):
        return []
    if verb == "ADD":
        # Even if it adds NULLs only: a column of that name may have been dropped just before.
        return [] if follows in _ADDS_NO_COLUMN and not _adds_primary_key(words) else [altered]
    if verb == "DROP":
        return [altered] if follows in _REMOVES_ROWS else []
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
    return [altered]


def _adds_primary_key(words: Words) -> bool:
    """Return True for ADD [CONSTRAINT [name]] PRIMARY KEY: NULLs in its columns become other values."""
    word = words.next()
    if word == "CONSTRAINT" and (word := words.next()) not in _CONSTRAINTS:
        word = words.next()
    return word == "PRIMARY"


def _classify_drop(words: Words) -> Statement:
    kind, is_temporary = _read_object(words)
    if kind == "INDEX":
        words.find("ON")
        return Statement(StatementKind.DDL, (words.read_name(),))
    if kind in ("DATABASE", "SCHEMA"):
        return _dropped_schema(words)
    if kind not in ("TABLE", "TABLES") or is_temporary:
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    names = words.read_names()
    return Statement(StatementKind.TRUNCATE, names, gone=names)


def _classify_rename(words: Words) -> Statement:
    if words.next() not in ("TABLE", "TABLES"):
        return Statement(StatementKind.NOTHING)
    words.skip(_BEFORE_NAME)
    old: list[Name] = [words.read_name()]
    new: list[Name] = []
    while word := words.find("TO", ","):
        (new if word == "TO" else old).append(words.read_name())
    names, gone = _distinct(*old, *new), set[Name]()
    # Renames take effect from left to right: a swap passes through a name that no table has afterwards.
    for before, after in zip(old, new, strict=False):
        gone = (gone | {before}) - {after}
    ordered = (name for name in names if name in gone)
    return Statement(StatementKind.DDL, names, rewrites=_distinct(*new), gone=tuple(ordered))


def _classify_insert(words: Words) -> Statement:
    words.skip(_BEFORE_NAME)
    return Statement(StatementKind.ROWS, (words.read_name(),))


def _classify_update(words: Words) -> Statement:
    words.skip(_BEFORE_NAME)
    table = words.read_name()
    return Statement(StatementKind.ROWS, (table,) if words.next() == "SET" else ())


def _classify_delete(words: Words) -> Statement:
    words.skip(_BEFORE_NAME)
    if words.next() != "FROM":
        return Statement(StatementKind.ROWS)
    table = words.read_name()
    follows = words.next()
    if follows in ("", ";"):
        # A server logs this for each MEMORY table, which is empty after a restart.
        return Statement(StatementKind.TRUNCATE, (table,))
    return Statement(StatementKind.ROWS, (table,) if follows in ("WHERE", "ORDER", "LIMIT") else ())


def _classify_repair(words: Words) -> Statement:
    """REPAIR TABLE may lose rows."""
    words.find("TABLE", "TABLES", "VIEW")
    names = _distinct(*words.read_names())
    return Statement(StatementKind.DDL, names, rewrites=names)


def _dropped_schema(words: Words) -> Statement:
    words.skip(_BEFORE_NAME)
    return Statement(StatementKind.DDL, dropped_schema=words.read_name()[1])


def _distinct(*names: Name) -> tuple[Name, ...]:
    return tuple(dict.fromkeys(names))


def _read_object(words: Words, modifiers: list[str] | None = None) -> tuple[str, bool]:
    """Consume the kind of object that a CREATE, ALTER or DROP is about; return it, and whether it is temporary.

    Appends the words before it to ``modifiers``.
    """
    is_temporary = False
    while (word := words.next()) not in _OBJECTS:
        is_temporary |= word == "TEMPORARY"
        if modifiers is not None:
            modifiers.append(word)
        if word == "":
            break
    return word, is_temporary


_VERBS: dict[str, Callable[[Words], Statement]] = {
    "BEGIN": _classify_begin, "COMMIT": _classify_commit, "ROLLBACK": _classify_rollback, "START": _classify_start,
    "XA": _classify_xa, "TRUNCATE": _classify_truncate, "CREATE": _classify_create, "ALTER": _classify_alter,
    "DROP": _classify_drop, "RENAME": _classify_rename, "INSERT": _classify_insert, "REPLACE": _classify_insert,
    "UPDATE": _classify_update, "DELETE": _classify_delete, "REPAIR": _classify_repair,
}  # fmt: skip
