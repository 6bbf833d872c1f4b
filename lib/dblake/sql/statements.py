"""What a statement is, by DuckDB's own parser: which names it uses, and whether it only reads.

Place: before ``engine``. Guarantee: neither is guessed from the text, except the statements of the prompt that are the
same in all engines: ``SHOW TABLES`` and ``DESCRIBE table``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from dblake.core.errors import UsageError
from dblake.sql.duckdb_result import to_usage_error
from dblake.sql.names import split_name

_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*\Z", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+(?:table\s+)?(?P<name>(?!select\b|with\b|from\b)\S.*?)\s*\Z",
                       re.IGNORECASE | re.DOTALL)
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name as a statement has it; empty parts were not written."""

    source: str
    schema: str
    name: str


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
    """Return the names of the relations that a query uses, those of its WITH clauses included."""
    text = _EXPLAIN.sub("", statement, count=1)
    ((document,),) = connection.execute("SELECT json_serialize_sql(CAST($1 AS VARCHAR))", [text]).fetchall()
    return sorted(set(_base_tables(json.loads(document))), key=lambda n: (n.source, n.schema, n.name))


def _base_tables(node: Any) -> Iterator[Name]:
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield Name(node.get("catalog_name", ""), node["schema_name"], node["table_name"])
        for child in node.values():
            yield from _base_tables(child)
    elif isinstance(node, list):
        for child in node:
            yield from _base_tables(child)
