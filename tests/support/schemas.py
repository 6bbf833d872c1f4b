"""Table schemas in few words."""

from __future__ import annotations

from dblake.base.core.schema import Column, TableSchema


def table_schema(table: str, *columns: str) -> TableSchema:
    """``"id integer key"``, ``"note text"``, ``"odd name: text"``; key columns in the order of the key."""
    found, keys = [], 0
    for text in columns:
        name, _, kind = text.partition(": " if ": " in text else " ")
        if kind.endswith(" key"):
            keys += 1
            found.append(Column(name, kind.removesuffix(" key"), False, keys))
        else:
            found.append(Column(name, kind))
    return TableSchema(table, tuple(found))
