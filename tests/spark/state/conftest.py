"""A small warehouse to which tests write events and schemas directly, and which they fold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblake.core.schema import TableSchema
from dblake.events.schema import EVENTS
from dblake.lake.layout import Paths
from dblake.lake.schemas import SCHEMAS
from dblake.state.run import TableResult, run_state
from tests.support.schemas import table_schema

__all__ = ["Lake", "table_schema", "when"]


class Lake:
    """One source's tables. An event is ``(lsn, op, key, after)``, optionally with its undecoded columns."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.paths = Paths(str(root), "shop")
        self.results: list[list[TableResult]] = []

    def schema(self, schema: TableSchema, *, lsn: int = 1, batch: int = 1) -> None:
        """Append a version of a table's schema."""
        row = (schema.schema_id, schema.table, 1, lsn, 0,
               [(c.name, c.type, c.nullable, c.key) for c in schema.columns], list(schema.primary_key), batch)
        rows = self.spark.createDataFrame([row], from_arrow_schema(SCHEMAS))
        rows.write.format("delta").mode("append").save(self.paths.schemas)

    def frame(self, schema: TableSchema, batch: int, events: Sequence[tuple[object, ...]]) -> DataFrame:
        """Return events of one batch with the columns of EVENTS."""
        rows = []
        for lsn, op, key, after, *undecoded in events:
            origin = {"r": "dump", "f": "dump"}.get(str(op), "log")
            assert isinstance(lsn, int) and (after is None or isinstance(after, dict))
            partial = op in ("c", "u", "r") and after is not None and set(after) != set(schema.names)
            keys = None if key is None else dict(zip(schema.primary_key, key if isinstance(key, tuple) else (key,),
                                                     strict=True))
            rows.append((1, lsn, 0, schema.table, op, keys, None, after, schema.schema_id, 700, when(lsn), True, origin,
                         None, batch, partial, undecoded[0] if undecoded else []))
        return self.spark.createDataFrame(rows, EVENTS)

    def land(self, schema: TableSchema, batch: int, *events: tuple[object, ...]) -> None:
        self.append([self.frame(schema, batch, events)])

    def append(self, frames: Sequence[DataFrame]) -> None:
        reduce(DataFrame.union, frames).write.format("delta").mode("append").save(self.paths.events)

    def fold(self, *, batches_per_step: int = 1000, until_batch: int | None = None) -> list[TableResult]:
        """Run state, append its results to ``results`` and return them."""
        self.results.append(run_state(
            self.spark, self.paths, parallel=2, batches_per_step=batches_per_step, until_batch=until_batch
        ))
        return self.results[-1]

    def state(self, schema: str, table: str) -> DataFrame:
        return self.spark.read.format("delta").load(self.paths.state(schema, table))


def when(lsn: int) -> datetime:
    """Return the commit time of transaction ``lsn``: that many minutes after midnight."""
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=lsn)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)
