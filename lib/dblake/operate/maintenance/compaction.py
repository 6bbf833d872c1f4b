"""Compact, delete from and vacuum one Delta table, safely beside its readers and writers.

Place: below ``maintenance.run``. Guarantee: readers see no change but the deletion of the given rows, and a commit that
loses a conflict with another writer is retried. Which rows may be deleted, and how old a file must be before it is
removed, is the caller's decision: time travel and streams that have not read a removed file lose it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dblake.base.lake.locks import commit_lock
from dblake.base.lake.tables import maps_columns, open_table
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.spark.sql_literals import delta

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from dblake.transform.spark.session import Session

SMALL_FILE_BYTES = 64 << 20
"""Compaction merges files below this size, into files of up to twice this size."""


def maintenance_session(spark: SparkSession, small_bytes: int = SMALL_FILE_BYTES) -> SparkSession:
    """Return a new session with Delta settings for maintenance only."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(small_bytes))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(2 * small_bytes))
    # VACUUM lists a folder in this many tasks; Spark's default of 10,000 takes minutes for a short listing.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", spark.sparkContext.defaultParallelism)
    # Otherwise Delta silently ignores the given hours in favor of the table's own property.
    session.conf.set("spark.databricks.delta.vacuum.retentionWindowIgnore.enabled", "false")
    return session


@retry_on_conflict
def compact(session: SparkSession, path: str, small_bytes: int = SMALL_FILE_BYTES) -> int:
    """Merge files smaller than ``small_bytes`` into files up to twice that; return how many were removed."""
    if small_bytes != SMALL_FILE_BYTES:
        session = maintenance_session(session, small_bytes)
    with commit_lock(path):
        row = _table(session, path).optimize().executeCompaction().first()
    return int(row["metrics"]["numFilesRemoved"]) if row else 0


@retry_on_conflict
def delete(session: SparkSession, path: str, condition: str) -> int:
    """Delete the rows of a table, alias ``t``, that match an SQL condition; return their number.

    Not through delta-rs: Arrow reads the text of files that its DELETE rewrites as ``string_view``, which Arrow's own
    functions do not take.
    """
    with commit_lock(path):
        return _count_affected(session.sql(f"DELETE FROM {delta(path)} t WHERE {condition}"))


@retry_on_conflict
def delete_matching(session: SparkSession, path: str, rows: DataFrame, columns: tuple[str, ...], within: str) -> int:
    """Delete a table's rows that equal one of ``rows`` in ``columns``; return their number.

    Only rows that match the SQL condition ``within``, on alias ``t``, are compared.
    """
    is_equal = " AND ".join(f"t.{name} = s.{name}" for name in columns)
    table = _table(session, path).alias("t")
    with commit_lock(path):
        return _count_affected(table.merge(rows.alias("s"), f"{is_equal} AND {within}").whenMatchedDelete().execute())


def vacuum(session: Session, path: str, hours: int) -> None:
    """Remove files that left the table more than ``hours`` ago, and older files that killed writers never committed.

    Needs Spark for a table with odd column names only. Fewer than 168 hours, Delta's own retention, are rejected.
    """
    with commit_lock(path):
        table = open_table(path)
        if maps_columns(table):
            _table(session(), path).vacuum(hours)
        else:
            table.vacuum(hours, dry_run=False, full=True)


def _table(session: SparkSession, path: str) -> DeltaTable:
    # Importing it imports PySpark, which a run with nothing to do saves.
    from delta.tables import DeltaTable

    return DeltaTable.forPath(session, path)


def _count_affected(metrics: DataFrame) -> int:
    row = metrics.first()
    return int(row["num_affected_rows"]) if row else 0
