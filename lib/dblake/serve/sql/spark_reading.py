"""The rows of a table of a reading in Spark: as SQL for ``views``, as a data frame for ``LakeTable.to_spark``."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblake.base.lake.tables import open_table
from dblake.serve.read.reading import TableReading
from dblake.serve.sql.state_rows import state_rows_sql
from dblake.transform.spark.sql_literals import delta, identifier
from dblake.transform.state.files import table_columns


def reading_rows_sql(reading: TableReading) -> str:
    """Return a relation of the rows of the reading's version of state; no rows if there is none."""
    if reading.version is None:
        return state_rows_sql(reading.shape, None, set())
    existing = set(table_columns(open_table(reading.path, reading.version)).types)
    return state_rows_sql(reading.shape, delta(reading.path, reading.version), existing)


def reading_frame(spark: SparkSession, reading: TableReading) -> DataFrame:
    """Return the rows of a table: state's rows that no newer change replaces, and the changes.

    The changes, which are in memory, are sent to Spark; state is read by it.
    """
    state = spark.sql(f"SELECT * FROM {reading_rows_sql(reading)}")
    columns = [identifier(column.name) for column in reading.shape.current]
    if reading.changes is None:
        return state.where(~F.col("_deleted")).select(*columns)
    changes = spark.createDataFrame(reading.changes)
    if reading.keys:
        state = state.join(changes.select("_key"), "_key", "left_anti")
    # A time without a zone comes from Arrow as one with a zone.
    cast = [f"CAST({identifier(c.name)} AS {c.type}) AS {identifier(c.name)}" for c in reading.shape.current]
    live = [rows.where(~F.col("_deleted")).selectExpr(*cast) for rows in (state, changes)]
    return live[0].unionAll(live[1])
