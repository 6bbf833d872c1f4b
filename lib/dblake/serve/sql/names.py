"""Names that queries use for a source's tables and their views, in every engine.

Place: between the schemas table and the engines. A table is ``schema.table``; its views have the suffixes ``_live`` and
``_history``. Guarantee: a name means at most one table. It may be written exactly, in any case, or with ``_`` for each
character outside ``A-Z``, ``a-z``, ``0-9`` and ``_``. This is the order of preference; a name that fits several tables
equally well is rejected. What a view contains is for ``rows``, ``duckdb_history`` and ``views``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dblake.base.core.errors import UsageError
from dblake.base.core.names import split_qualified

SYSTEM_SCHEMA = "dblake"
"""The schema of the views over a source's own tables."""
LIVE, HISTORY = "_live", "_history"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^".`\s]+)')
_RESERVED = frozenset({
    "all", "analyse", "analyze", "and", "anti", "any", "array", "as", "asc", "asof", "asymmetric", "at",
    "authorization", "between", "bigint", "binary", "bit", "boolean", "both", "by", "case", "cast", "char",
    "character", "check", "coalesce", "collate", "collation", "column", "columns", "concurrently", "constraint",
    "create", "cross", "dec", "decimal", "default", "deferrable", "desc", "describe", "distinct", "do", "else",
    "end", "except", "exists", "extract", "false", "fetch", "float", "for", "foreign", "freeze", "from", "full",
    "generated", "glob", "group", "grouping", "grouping_id", "having", "ilike", "in", "initially", "inner",
    "inout", "int", "integer", "intersect", "interval", "into", "is", "isnull", "join", "lambda", "lateral",
    "leading", "left", "like", "limit", "map", "national", "natural", "nchar", "none", "not", "notnull", "null",
    "nullif", "numeric", "offset", "on", "only", "or", "order", "out", "outer", "overlaps", "overlay", "pivot",
    "pivot_longer", "pivot_wider", "placing", "position", "positional", "precision", "primary", "qualify",
    "real", "references", "returning", "right", "row", "select", "semi", "setof", "show", "similar", "smallint",
    "some", "struct", "substring", "summarize", "symmetric", "table", "tablesample", "then", "time",
    "timestamp", "to", "trailing", "treat", "trim", "true", "try_cast", "tuple", "union", "unique", "unpack",
    "unpivot", "using", "values", "varchar", "variadic", "verbose", "when", "where", "window", "with",
    "xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi",
    "xmlroot", "xmlserialize", "xmltable",
})
"""Words that are names in DuckDB only in quotes, at least in some places."""
_MAX_SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class TableView:
    """A view of a table, given by its qualified name: ``kind`` is ``""``, ``_live`` or ``_history``."""

    table: str
    kind: str = ""


class TableNames:
    """The names of one source's tables. ``default`` is the schema of unqualified names, None if there are several."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = sorted(tables)
        self._parts = {table: split_qualified(table) for table in self.tables}
        self.schemas = sorted({schema for schema, _ in self._parts.values()})
        self.default = self.schemas[0] if len(self.schemas) == 1 else "public" if "public" in self.schemas else None

    def find(self, schema: str | None, name: str) -> TableView | None:
        """Return the view that a name means; None for an unknown name. ``schema`` is None for an unqualified name.

        Raises UsageError for a name that fits several tables equally well.
        """
        if schema is None and self.default is not None:
            found = self.find(self.default, name)
            if found:
                return found
        for kind in ("", LIVE, HISTORY):
            if not name.lower().endswith(kind):
                continue
            tables = self._fitting(schema, name[: len(name) - len(kind)])
            if len(tables) > 1:
                raise UsageError(f"{name} is ambiguous: {' or '.join(tables)}",
                                 next_step="write schema and table exactly as at the source, in double quotes")
            if tables:
                return TableView(tables[0], kind)
        return None

    def find_written(self, text: str) -> TableView | None:
        """Return the view that a name as a query writes it means: ``schema.table`` or ``table``, perhaps in quotes.

        Raises UsageError as ``find`` does.
        """
        parts = split_name(text)
        return self.find(parts[0] if len(parts) == 2 else None, parts[-1]) if parts and len(parts) < 3 else None

    def find_spelled(self, schema: str, name: str) -> TableView | None:
        """Return the view of a name spelled with ``_`` in any case, as engines need it that accept no other names.

        Raises UsageError for a name that fits several tables.
        """
        for kind in ("", LIVE, HISTORY):
            if not name.lower().endswith(kind):
                continue
            wanted = schema.lower(), name[: len(name) - len(kind)].lower()
            tables = [t for t, parts in self._parts.items() if tuple(spelled(p).lower() for p in parts) == wanted]
            if len(tables) > 1:
                raise UsageError(
                    f"{schema}.{name} is ambiguous in Spark: {' or '.join(tables)}",
                    next_step="use the default engine and write the name exactly, in double quotes",
                )
            if tables:
                return TableView(tables[0], kind)
        return None

    def suggest(self, name: str) -> str:
        """Return a next step for a name that does not exist."""
        near = difflib.get_close_matches(name.lower(), {n.lower() for _, n in self._parts.values()})
        found = [sql_name(t) for like in near for t, (_, n) in self._parts.items() if n.lower() == like]
        parents = [sql_name(t) for t in self._parents(None, name)]
        found = list(dict.fromkeys(parents + found))[:_MAX_SUGGESTIONS]
        if found:
            hint = "; a partition's rows are in its parent" if parents else ""
            return f"write {' or '.join(found)}{hint}; SHOW TABLES lists all tables"
        return "SHOW TABLES lists all tables"

    def find_parent(self, table: str) -> str | None:
        """Return the table in the same schema whose name begins this one's, as a parent's begins its partitions'."""
        return next(iter(self._parents(*self._parts[table])), None)

    def _parents(self, schema: str | None, name: str) -> list[str]:
        """Return the tables with the longest name that another one begins with, in a schema or in all."""
        wanted = name.lower()
        parents = [t for t, (s, n) in self._parts.items()
                   if schema in (None, s) and n.lower() != wanted and wanted.startswith(n.lower())]
        longest = max((len(self._parts[t][1]) for t in parents), default=0)
        return [t for t in parents if len(self._parts[t][1]) == longest]

    def _fitting(self, schema: str | None, name: str) -> list[str]:
        """Return the tables that a name fits best."""
        best, found = 3, list[str]()
        for table, (own_schema, own_name) in self._parts.items():
            fit = max(0 if schema is None else _fit(schema, own_schema), _fit(name, own_name))
            if fit < best:
                best, found = fit, []
            if fit == best < 3:
                found.append(table)
        return found


def split_name(text: str) -> list[str] | None:
    """Return the parts of a name, in double quotes, backticks or bare; None if it is no name of one to three parts."""
    parts, rest = list[str](), text
    while match := _PART.match(rest):
        bare = match[3]
        parts.append(bare if bare else match[1].replace('""', '"') if match[1] else match[2].replace("``", "`"))
        rest = rest[match.end():]
        if not rest:
            return parts if len(parts) <= 3 else None
        if not rest.startswith("."):
            return None
        rest = rest[1:]
    return None


def _fit(written: str, name: str) -> int:
    """Return 0 for the exact name, 1 in another case, 2 spelled with ``_``, 3 for another name."""
    if written == name:
        return 0
    if written.lower() == name.lower():
        return 1
    return 2 if written.lower() == spelled(name).lower() else 3


def spelled(part: str) -> str:
    """Return a schema's or table's name with ``_`` for every character that a plain SQL name cannot have."""
    return re.sub(r"[^A-Za-z0-9_]", "_", part)


def quoted(part: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + part.replace('"', '""') + '"'


def sql_name(table: str) -> str:
    """Return a qualified name as a query writes it: quoted where it is no plain word."""
    parts = split_qualified(table)
    return ".".join(p if _WORD.match(p) and p.lower() not in _RESERVED else quoted(p) for p in parts)
