"""Upkeep of one Delta table, beside whoever reads and writes it.

Promises that no row a reader can see changes by it but those it is told to delete, and that a commit lost to another
writer's is tried again. What may be deleted, and how old a file must be before it goes, is the caller's to know: a
file that is gone is gone for time travel and for a stream that has yet to come by, too.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from dblake.lake.locks import commit_lock
from dblake.spark.conflicts import retry_on_conflict
from dblake.spark.sql_literals import delta

SMALL_BYTES = 64 << 20
"""Files from this size on are left as they are; smaller ones are put together, up to twice as much."""


def upkeep_session(spark: SparkSession, small_bytes: int = SMALL_BYTES) -> SparkSession:
    """A session whose settings are for upkeep alone."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(small_bytes))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(2 * small_bytes))
    # VACUUM lists a folder in so many tasks; Spark's own 10,000 take minutes to find out that there is little to list.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", spark.sparkContext.defaultParallelism)
    # Else the hours given are passed over in silence, for a property of the table's.
    session.conf.set("spark.databricks.delta.vacuum.retentionWindowIgnore.enabled", "false")
    return session


@retry_on_conflict
def compact(session: SparkSession, path: str, small_bytes: int = SMALL_BYTES) -> int:
    """Merge files smaller than ``small_bytes`` into files up to twice that; return how many were removed."""
    if small_bytes != SMALL_BYTES:
        session = upkeep_session(session, small_bytes)
    with commit_lock(path):
        found = DeltaTable.forPath(session, path).optimize().executeCompaction().first()
    return int(found["metrics"]["numFilesRemoved"]) if found else 0


@retry_on_conflict
def delete(session: SparkSession, path: str, condition: str) -> int:
    """Deletes rows of the table, which the condition may call ``t``; returns how many."""
    with commit_lock(path):
        return _affected(session.sql(f"DELETE FROM {delta(path)} t WHERE {condition}"))


@retry_on_conflict
def delete_these(session: SparkSession, path: str, rows: DataFrame, columns: tuple[str, ...], within: str) -> int:
    """Deletes the rows that are equal in some columns, all of them ``within`` a condition; returns how many."""
    same = " AND ".join(f"t.{name} = s.{name}" for name in columns)
    table = DeltaTable.forPath(session, path).alias("t")
    with commit_lock(path):
        return _affected(table.merge(rows.alias("s"), f"{same} AND {within}").whenMatchedDelete().execute())


def vacuum(session: SparkSession, path: str, hours: float) -> None:
    """Removes files that have not been the table's for so many hours, and those that never were, of killed writers.

    Delta refuses fewer than the 168 that are its own retention.
    """
    with commit_lock(path):
        DeltaTable.forPath(session, path).vacuum(hours)


def _affected(metrics: DataFrame) -> int:
    row = metrics.first()
    return int(row["num_affected_rows"]) if row else 0
