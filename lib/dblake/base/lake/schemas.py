"""The schemas table: every version of every table's schema, as reconcile appends them and everything after it reads.

Read through delta-rs, without a JVM.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows

#: One row per schema version; it holds from its position on, where the log first showed it.
SCHEMAS = pa.schema(
    [
        ("schema_id", pa.string()),
        ("table", pa.string()),
        ("incarnation", pa.int64()),
        ("lsn", pa.int64()),
        ("seq", pa.int64()),
        (
            "columns",
            pa.list_(
                pa.struct([("name", pa.string()), ("type", pa.string()), ("nullable", pa.bool_()), ("key", pa.int64())])
            ),
        ),
        ("primary_key", pa.list_(pa.string())),
        ("batch", pa.int64()),
    ]
)


#: The next step where events refer to a schema that ``read_schemas`` lacks.
SCHEMA_LOST = "run reconcile --from BATCH with a batch of landing that has the schema: it writes schemas again"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A table's schema, the landing batch it came with, and the position from which it holds."""

    batch: int
    schema: TableSchema
    since: Position


class SchemaVersions:
    """The positions from which tables' schemas hold. Capture lands each table's schema whenever it opens the log."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[Position, str]]] = {}

    def add(self, schema: TableSchema, since: Position) -> bool:
        """Record that a schema holds from a position on; return False if the one that held there is equal."""
        versions = self._versions.setdefault(schema.table, [])
        index = bisect_right(versions, since, key=lambda version: version[0])
        if index and versions[index - 1][1] == schema.schema_id:
            return False
        versions.insert(index, (since, schema.schema_id))
        return True


def read_schemas(paths: Paths) -> dict[str, list[SchemaVersion]]:
    """Return all versions of every table's schema, oldest first; nothing if there is no schemas table."""
    rows = query_rows(paths.schemas, 'SELECT * FROM t ORDER BY "table", incarnation, lsn, seq')
    versions: dict[str, list[SchemaVersion]] = {}
    for row in rows:
        since = Position(row["incarnation"], row["lsn"], row["seq"])
        versions.setdefault(row["table"], []).append(SchemaVersion(row["batch"], parse_schema(row), since))
    return versions


def parse_schema(row: Mapping[str, Any]) -> TableSchema:
    """Return the schema that a row with SCHEMAS' ``table`` and ``columns`` describes."""
    columns = tuple(Column(c["name"], c["type"], c["nullable"], c["key"]) for c in row["columns"])
    return TableSchema(row["table"], columns)


def schema_row(schema: TableSchema, since: Position, batch: int) -> dict[str, Any]:
    """Return a schema version as a row of SCHEMAS."""
    return {
        "schema_id": schema.schema_id, "table": schema.table, "incarnation": since.incarnation, "lsn": since.lsn,
        "seq": since.seq, "columns": [asdict(column) for column in schema.columns],
        "primary_key": list(schema.primary_key), "batch": batch,
    }
