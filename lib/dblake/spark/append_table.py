"""Append-only Delta tables as reconcile's pipeline sees them: made once, appended to once for each landing batch.

Every append carries the number of the newest landing batch in it, as a Delta transaction identifier. So a table
itself says how far it is, whatever became of a stream checkpoint, and Delta refuses what was appended before. Who
appends holds the table (``lake.locks``) from where it looks how far that is.

Rows that the driver holds anyway go through delta-rs: for Spark a handful of them are several jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dblake.lake.locks import commit_lock
from dblake.lake.log import commit_rows, newest_batch, query_rows, record_batch


@dataclass(frozen=True, slots=True)
class AppendTable:
    """One table. ``application`` is its transaction identifier, ``prune_by`` the columns readers prune files by.

    ``earlier`` is a table, as a path, of which all rows from before a landing batch count as this one's, too.
    """

    spark: SparkSession
    path: str
    application: str
    columns: StructType
    prune_by: tuple[str, ...]
    earlier: tuple[str, int] | None = None

    def make(self) -> None:
        """Makes the table if there is none; one with an earlier one begins where that one's rows end."""
        if not DeltaTable.is_deltatable(self.path):
            if "://" not in self.path:
                os.makedirs(self.path, exist_ok=True)
            pruned = {"delta.dataSkippingStatsColumns": ",".join(self.prune_by)}
            with commit_lock(self.path):
                # Delta's own spelling of a schema is Spark's.
                DeltaTable.create(
                    self.path, Schema.from_json(self.columns.json()), mode="ignore", configuration=pruned
                )
        if self.earlier:
            record_batch(self.path, self.application, self.earlier[1] - 1)

    def done(self) -> int:
        """The newest landing batch appended; 0 before the first."""
        return newest_batch(self.path, self.application)

    def append(self, rows: DataFrame, batch: int) -> None:
        """Appends the rows that ``batch`` is the newest batch of; nothing happens if that was done before."""
        rows.write.format("delta").mode("append").options(txnAppId=self.application, txnVersion=batch).save(self.path)

    def append_held(self, rows: Sequence[Mapping[str, Any]], batch: int) -> None:
        """``append`` for the few rows that the driver holds; without any it is a commit without a file."""
        schema = to_arrow_schema(self.columns, timezone="UTC")
        held = pa.Table.from_pylist(list(rows), schema=schema) if rows else None
        commit_rows(self.path, self.application, batch, held)

    def rows(self) -> DataFrame:
        """The table as it is now."""
        # Of what is known to be empty Spark leaves all out that is built on it; of a table without files it does not.
        own = self.spark.createDataFrame([], self.columns)
        if self.done():
            own = self.spark.read.format("delta").load(self.path)
        if self.earlier is None:
            return own
        path, batch = self.earlier
        return self.spark.read.format("delta").load(path).where(F.col("batch") < batch).unionByName(own)

    def held(self) -> list[dict[str, Any]]:
        """All ``rows``, for a table that is small."""
        own = query_rows(self.path, "SELECT * FROM t")
        if self.earlier is None:
            return own
        path, batch = self.earlier
        return query_rows(path, f"SELECT * FROM t WHERE batch < {batch}") + own
