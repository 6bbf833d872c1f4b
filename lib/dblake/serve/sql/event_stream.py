"""One table's events as a streaming data frame of Spark, for ``LakeTable.to_stream``.

Place: between ``event_batches``, which reads them without a JVM, and Structured Streaming, which keeps the checkpoint
of a subscription as its offset. Guarantee: a query that is started again continues with the next transaction. A
micro-batch that did not finish comes again with the same rows. Rows written by its number, or by position, are
therefore written exactly once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.sql.event_batches import EventBatches, StreamRequest
from dblake.serve.sql.event_columns import EVENT_COLUMNS, stream_types
from dblake.transform.spark.sql_literals import identifier

_POLL_SECONDS = 0.2
_CHECKPOINT = "checkpoint"


class EventSource(DataSource):
    """A Python data source for one request; ``event_stream`` registers a subclass that holds it."""

    request: ClassVar[StreamRequest]
    source_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the name under which it is registered."""
        return cls.source_name

    def schema(self) -> str:
        """Return the columns as DDL."""
        return ", ".join(f"{identifier(name)} {kind}" for name, kind in stream_types(self.request.schema).items())

    def simpleStreamReader(self, schema: StructType) -> EventStreamReader:
        """Return the reader of the stream."""
        # PySpark 4.2's planning processes send their profilers' accumulators even if nothing is profiled, and its
        # client takes these for an error at the end of a pipeline's run.
        _accumulatorRegistry.clear()
        return EventStreamReader(self.request, schema)


class EventStreamReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delivers micro-batches; offsets are checkpoints of a subscription."""

    def __init__(self, request: StreamRequest, schema: StructType) -> None:
        self._request = request
        self._opened: EventBatches | None = None
        self._columns: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._is_bounded = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open subscription: Spark sends the reader to the process that reads a batch again."""
        return {**self.__dict__, "_opened": None}

    @property
    def _batches(self) -> EventBatches:
        if self._opened is None:
            self._opened = EventBatches(self._request)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Return the checkpoint before the first event."""
        return {_CHECKPOINT: self._batches.begin()}

    def prepareForTriggerAvailableNow(self) -> None:
        """End with what events hold now."""
        self._is_bounded = True
        self._batches.end_at_newest()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Return the next micro-batch and the checkpoint after it."""
        tables, end = self._batches.read(start[_CHECKPOINT])
        if end == start[_CHECKPOINT] and not self._is_bounded:
            # Without a trigger's interval Spark would ask again at once.
            time.sleep(_POLL_SECONDS)
        return iter(self._as_batches(tables)), {_CHECKPOINT: end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """Return a micro-batch again."""
        return iter(self._as_batches(self._batches.read_between(start[_CHECKPOINT], end[_CHECKPOINT])))

    def _as_batches(self, tables: list[pa.Table]) -> list[pa.RecordBatch]:
        return [batch for table in tables for batch in table.cast(self._columns).combine_chunks().to_batches()]


def event_stream(session: SparkSession, request: StreamRequest) -> DataFrame:
    """Return the streaming data frame of a request."""
    shown = f"{request.paths.root} {request.schema.to_json()} {request.start} {request.partition} {request.max_events}"
    name = "dblake_" + hashlib.sha256(shown.encode()).hexdigest()[:12]

    class RequestSource(EventSource):
        """PySpark sends a class defined in a function by value, and with it the request."""

        source_name = name

    RequestSource.request = request
    session.dataSource.register(RequestSource)
    return session.readStream.format(name).load()


def auto_cdc(schema: TableSchema) -> dict[str, Any]:
    """Return the arguments of Spark's ``create_auto_cdc_flow`` for a stream, beside ``target`` and ``source``."""
    return {
        "keys": list(schema.primary_key), "sequence_by": f"struct({', '.join(Position.STATE_COLUMNS)})",
        "apply_as_deletes": f"_op IN ('{Op.DELETE}', '{Op.TRUNCATE}')",
        "except_column_list": list(EVENT_COLUMNS), "stored_as_scd_type": 1,
    }
