"""Fingerprints of captured tables: what the catalog shows of changes that leave no row events.

Capture compares them to decide which tables to dump again. Here types, keys and nullability are all there is to
compare; what the catalog does not show (rows that came or went with a part of a table) is in the log's statements
(``ddl``).
"""

from __future__ import annotations

from collections.abc import Iterable

from dblake.base.core.schema import TableSchema
from dblake.base.core.source import ColumnFingerprint, TableFingerprint


def table_fingerprints(schemas: Iterable[TableSchema]) -> list[TableFingerprint]:
    """Return each table's fingerprint."""
    return [
        TableFingerprint(schema, {
            # Nullability counts: a NULL becomes another value where it is no longer allowed.
            c.name: ColumnFingerprint(f"{c.type} key {c.key}{'' if c.nullable else ' not null'}")
            for c in schema.columns
        })
        for schema in schemas
    ]
