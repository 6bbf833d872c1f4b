"""Every version of every table's schema, as reconcile has appended them: what state, views and checks go by."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from dblake.core.position import Position
from dblake.core.schema import Column, TableSchema
from pipelines.paths import Paths


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A table's schema as it came with a landing batch, from a position on."""

    batch: int
    schema: TableSchema
    since: Position


def read_schemas(spark: SparkSession, paths: Paths) -> dict[str, list[SchemaVersion]]:
    """All versions of every table's schema, oldest first."""
    found: dict[str, list[SchemaVersion]] = {}
    rows = spark.read.format("delta").load(paths.schemas).orderBy("table", "incarnation", "lsn", "seq").collect()
    for row in rows:
        columns = tuple(Column(c["name"], c["type"], c["nullable"], c["key"]) for c in row["columns"])
        since = Position(row["incarnation"], row["lsn"], row["seq"])
        version = SchemaVersion(row["batch"], TableSchema(row["table"], columns), since)
        found.setdefault(row["table"], []).append(version)
    return found
