"""Resolve the tables that a command names to captured tables with a primary key.

Guarantee: a table that cannot be read in chunks is rejected by name, before anything is queued.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import qualified, split_qualified
from dblake.base.core.schema import TableSchema


def resolve_tables(captured: Mapping[str, TableSchema], tables: Sequence[str]) -> tuple[str, ...]:
    """Return the qualified names of tables, each once.

    Raises Unsupported for a table that is not captured or has no primary key.
    """
    names = tuple(dict.fromkeys(_resolve_table(captured, table) for table in tables))
    keyless = [name for name in names if not captured[name].primary_key]
    if keyless:
        raise Unsupported(
            f"table {', '.join(keyless)} has no primary key, so it cannot be dumped",
            next_step="add a primary key; preflight shows whether its changes are captured until then",
        )
    return names


def canonical_name(table: str) -> str:
    """Return a table's name as ``table`` columns hold it; the text itself if it is not ``schema.table``."""
    try:
        return qualified(*split_qualified(table))
    except ValueError:
        return table


def _resolve_table(captured: Mapping[str, TableSchema], table: str) -> str:
    name = canonical_name(table)
    if name in captured:
        return name
    near = difflib.get_close_matches(name, captured, n=3)
    raise Unsupported(
        f"table {table} is not captured",
        next_step=f"did you mean {' or '.join(near)}?" if near else "write schema.table, as source.tables has it",
    )
