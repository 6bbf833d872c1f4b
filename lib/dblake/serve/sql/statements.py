"""What a statement is, by DuckDB's own parser: which names it uses, and whether it only reads tables.

Place: before ``engine``. Guarantee: neither is guessed from the text, except the statements of the prompt that are the
same in all engines: ``SHOW TABLES`` and ``DESCRIBE table``. A statement that writes is rejected, in a WITH clause or
below EXPLAIN too. A table function that is not listed here is rejected, because it might read files, memory or
settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from dblake.base.core.errors import UsageError
from dblake.serve.sql.duckdb_result import to_usage_error
from dblake.serve.sql.names import split_name

_EXPLAIN = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?",
                      re.IGNORECASE | re.DOTALL)
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*\Z", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+(?:table\s+)?(?P<name>(?!select\b|with\b|from\b)\S.*?)\s*\Z",
                       re.IGNORECASE | re.DOTALL)
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_READING_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLE_FUNCTIONS = frozenset({
    "duckdb_functions", "duckdb_keywords", "duckdb_types", "generate_series", "json_each", "json_tree",
    "pg_timezone_names", "range", "repeat", "repeat_row", "unnest",
})


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name as a statement has it; empty parts were not written."""

    source: str
    schema: str
    name: str

    def written(self) -> str:
        """Return the name with the parts that were written."""
        return ".".join(part for part in (self.source, self.schema, self.name) if part)

    def folded(self) -> tuple[str, ...]:
        """Return the parts as DuckDB compares them: without regard to case."""
        return self.source.lower(), self.schema.lower(), self.name.lower()


def is_show_tables(statement: str) -> bool:
    """Return whether the statement lists the tables."""
    return bool(_SHOW_TABLES.match(statement))


def described_name(statement: str) -> list[str] | None:
    """Return the parts of the name that ``DESCRIBE name`` asks about; None for another statement."""
    match = _DESCRIBE.match(statement)
    return split_name(match["name"]) if match else None


def require_query(statement: str) -> None:
    """Raise UsageError unless the text is one statement that only reads."""
    try:
        found = duckdb.extract_statements(statement)
    except duckdb.Error as error:
        raise to_usage_error(error) from None
    if len(found) != 1:
        raise UsageError(f"{len(found)} statements instead of one", next_step="give one statement, or pipe all to sql")
    if found[0].type not in _READING:
        kind = "PIVOT without IN" if found[0].type == duckdb.StatementType.MULTI else found[0].type.name
        raise UsageError(f"{kind} is not a query, and sql only reads", next_step="write a SELECT")


def is_explain(statement: str) -> bool:
    """Return whether the statement explains a plan."""
    return bool(_EXPLAIN.match(statement))


def table_names(connection: duckdb.DuckDBPyConnection, statement: str) -> list[Name]:
    """Return the names of the relations that a query uses, including its WITH clauses.

    Raises UsageError if a part of the query, or what it explains, does more than read tables.
    """
    text = _EXPLAIN.sub("", statement, count=1)
    ((document,),) = connection.execute("SELECT json_serialize_sql(CAST($1 AS VARCHAR))", [text]).fetchall()
    parsed = json.loads(document)
    if parsed["error"]:
        raise UsageError("what is explained is not a query, and sql only reads", next_step="write EXPLAIN SELECT …")
    names = set[Name]()
    for node in _nodes(parsed):
        kind = node.get("type")
        if kind == "BASE_TABLE":
            names.add(Name(node.get("catalog_name", ""), node["schema_name"], node["table_name"]))
        elif kind == "TABLE_FUNCTION":
            _require_table_function(node["function"])
        elif isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READING_NODES:
            written = kind.removesuffix("_NODE").removesuffix("_QUERY")
            raise UsageError(f"{written} is not a query, and sql only reads", next_step="write a SELECT")
    return sorted(names, key=lambda n: (n.source, n.schema, n.name))


def _require_table_function(function: dict[str, Any]) -> None:
    name = str(function.get("function_name", ""))
    if name.lower() not in _TABLE_FUNCTIONS:
        raise UsageError(f"sql reads the tables of its sources only, not the function {name}",
                         next_step="select from a table; SHOW TABLES lists all")


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a parsed statement."""
    if isinstance(node, dict):
        yield node
    elif not isinstance(node, list):
        return
    for child in node.values() if isinstance(node, dict) else node:
        yield from _nodes(child)
