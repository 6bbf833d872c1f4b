"""What ``SHOW TABLES``, ``DESCRIBE`` and completion show, alike in all engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dblake.base.core.schema import TableSchema
from dblake.serve.sql.names import SYSTEM_SCHEMA, sql_name
from dblake.serve.sql.result import TextResult
from dblake.serve.sql.system import SYSTEM_TABLES


def list_tables(schemas: Mapping[str, TableSchema]) -> TextResult:
    """Return the tables as a query writes them, with their key and number of columns; then the source's own."""
    rows = [
        (sql_name(table), ", ".join(schema.primary_key), str(len(schema.columns)))
        for table, schema in sorted(schemas.items())
    ]
    rows += [(f"{SYSTEM_SCHEMA}.{name}", "", "") for name in SYSTEM_TABLES]
    return TextResult(("table", "key", "columns"), rows)


def describe_columns(columns: Iterable[tuple[str, str]], schema: TableSchema | None) -> TextResult:
    """Return columns, given with the engine's types: name, type, type at the source, and place in the key."""
    known = {column.name: column for column in schema.columns} if schema else {}
    rows = []
    for name, kind in columns:
        column = known.get(name)
        rows.append((name, kind, column.type if column else "", str(column.key) if column and column.key else ""))
    return TextResult(("column", "type", "type at the source", "key"), rows)


def table_words(schemas: Mapping[str, TableSchema], default: str | None) -> list[str]:
    """Return the names of tables and columns; tables of the default schema also without its name."""
    found = {f"{SYSTEM_SCHEMA}.{name}" for name in SYSTEM_TABLES}
    for table, schema in schemas.items():
        name = sql_name(table)
        found |= {name, *schema.names}
        if default and name.startswith(f"{default}."):
            found.add(name.removeprefix(f"{default}."))
    return sorted(found)
