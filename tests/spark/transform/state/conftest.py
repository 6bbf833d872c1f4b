"""A small warehouse to which tests write events and schemas directly, and which they fold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import create_table
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.spark.session import Engine, EngineSession
from dblake.transform.state.run import TableResult, run_state
from tests.support.plain_lake import PlainLake, event_rows, when
from tests.support.schemas import table_schema

__all__ = ["Lake", "table_schema", "when"]


class Lake:
    """One source's tables. An event is ``(lsn, op, key, after)``, optionally with its undecoded columns."""

    def __init__(self, spark: SparkSession, root: Path, engine: Engine = "auto") -> None:
        self.spark, self._session = spark, EngineSession(lambda: spark, engine)
        self.paths = Paths(str(root), "shop")
        self._plain = PlainLake(root)
        self.results: list[list[TableResult]] = []

    def schema(self, schema: TableSchema, *, lsn: int = 1, batch: int = 1) -> None:
        """Append a version of a table's schema."""
        self._plain.schema(schema, lsn=lsn, batch=batch)

    def frame(self, schema: TableSchema, batch: int, events: Sequence[tuple[object, ...]]) -> pa.Table:
        """Return events of one batch with the columns of EVENT_COLUMNS."""
        return event_rows(schema, batch, events)

    def land(self, schema: TableSchema, batch: int, *events: tuple[object, ...]) -> None:
        self.append([self.frame(schema, batch, events)])

    def append(self, frames: Sequence[pa.Table]) -> None:
        """Append events, without Spark, in one commit."""
        create_table(self.paths.events, EVENT_COLUMNS)
        write_deltalake(self.paths.events, pa.concat_tables(frames), mode="append")

    def fold(self, *, batches_per_step: int = 1000, until_batch: int | None = None) -> list[TableResult]:
        """Run state, append its results to ``results`` and return them."""
        self.results.append(run_state(
            self._session, self.paths, parallel=2, batches_per_step=batches_per_step, until_batch=until_batch
        ))
        return self.results[-1]

    def state(self, schema: str, table: str) -> DataFrame:
        return self.spark.read.format("delta").load(self.paths.state(schema, table))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)
