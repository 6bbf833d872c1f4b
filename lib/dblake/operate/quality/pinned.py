"""Open a table for the suites at its newest version: a little one in this process, any other through Spark.

Place: below ``quality.selection``. Guarantee: all rows belong to one version of the table, whichever way they are read.
Spark needs a second of work to open a Delta table, more than a little table's suites take to evaluate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dblake.base.lake.query import read_little
from dblake.base.lake.tables import find_table

_LITTLE_BYTES = 4 << 20
"""Size of a little table's files; its rows travel to the JVM, which keeps them with the plan."""


class PinnedTable:
    """A table at one version, and the newest landing batch it holds. Its rows are read on first use."""

    def __init__(
        self, spark: SparkSession, path: str, version: int, batch: int, schema: StructType,
        read: Callable[[], pa.Table | None],
    ) -> None:
        """``read`` returns the rows of a little table."""
        self.version, self.batch = version, batch
        self._spark, self._path, self._schema, self._read = spark, path, schema, read

    @cached_property
    def rows(self) -> DataFrame:
        """Return the table as of its version."""
        rows = self._read()
        if rows is not None:
            return self._spark.createDataFrame(rows, self._schema)
        return self._spark.read.format("delta").option("versionAsOf", self.version).load(self._path)


def pin_table(spark: SparkSession, path: str, application: str, *, in_spark: bool = False) -> PinnedTable | None:
    """Return the table at its newest version; None if it does not exist or the application has committed no batch.

    With ``in_spark``, Spark reads a little table, too.
    """
    table = find_table(path)
    batch = table.transaction_version(application) if table else None
    if table is None or batch is None:
        return None
    # Delta's schema is Spark's, as JSON.
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    little = -1 if in_spark else _LITTLE_BYTES
    return PinnedTable(spark, path, table.version(), batch, schema, partial(read_little, table, little))
