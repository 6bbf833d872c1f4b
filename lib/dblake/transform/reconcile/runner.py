"""Run decoding work where it is cheapest: a little of it in the driver, more on Spark's executors.

A session with the engine ``spark`` has all of it on executors.

Both ways run the same pure functions on the same parts. Spark hands out parts and takes back what is small: keys as
rows of a frame, descriptions of written files as task results. Payloads never pass through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.transform.reconcile.batch_summary import RowGroups, divided
from dblake.transform.reconcile.key_join import Decode
from dblake.transform.reconcile.plan import Plan
from dblake.transform.reconcile.task import TaskResult, as_event_columns, write_dump_events, write_events
from dblake.transform.spark.session import Session, is_local, is_running, takes_all_work
from dblake.transform.spark.task_results import RESULT, numbers_of, result_batch, results_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BYTES = 8 << 20
"""Landing up to this size, uncompressed, is decoded in the driver: a Spark job would take longer to start."""
_SMALL_BYTES_COLD = 128 << 20
"""Likewise while Spark does not run, or has on one machine no Python workers yet: about a million rows.

Both take seconds to start.
"""
_TASK_BYTES = 64 << 20


class Runner:
    """Runs the tasks of one reconcile; ``session`` is called only when there is work for Spark."""

    _has_workers: ClassVar[bool] = False
    """Whether Spark has started Python workers for a task of this process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._session()

    @property
    def takes_all_work(self) -> bool:
        """True if no rows are decoded, compared or written in this process."""
        return takes_all_work(self._session)

    def write(self, parts: Sequence[RowGroups], plan: Plan, table: str) -> list[TaskResult]:
        """Run ``write_events`` over all parts. Raises what a task raised; its files then stay invisible."""
        if not parts:
            return []
        if self._is_small(parts):
            return [write_events(parts, plan, table)]
        tasks = self._tasks(parts)
        shared = self.spark.sparkContext.broadcast(plan)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in numbers_of(batches):
                yield result_batch(number, write_events, tasks[number], shared.value, table)

        try:
            return list(results_of(self._numbered(tasks).mapInArrow(run, RESULT).collect()))
        finally:
            shared.destroy()

    def frame(self, parts: Sequence[RowGroups], columns: pa.Schema, decode: Decode) -> DataFrame | None:
        """Return what ``decode`` makes of all parts as a frame with these columns; None if it is known to be empty."""
        if not parts:
            return None
        from pyspark.sql.pandas.types import from_arrow_schema

        if self._is_small(parts):
            rows = pa.Table.from_batches(decode(parts), columns)
            return self.spark.createDataFrame(rows, from_arrow_schema(columns)) if rows.num_rows else None
        tasks = self._tasks(parts)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in numbers_of(batches):
                yield from decode(tasks[number])

        return self._numbered(tasks).mapInArrow(run, from_arrow_schema(columns))

    def write_removals(self, events: DataFrame | pa.Table, table: str) -> list[TaskResult]:
        """Write deletes that a key join found, in order of position."""
        if isinstance(events, pa.Table):
            return [write_dump_events(events.to_batches(), table, Op.DELETE)] if events.num_rows else []

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield result_batch(0, write_dump_events, map(as_event_columns, batches), table, Op.DELETE)

        return list(results_of(events.sortWithinPartitions(*Position.COLUMNS).mapInArrow(run, RESULT).collect()))

    def _numbered(self, tasks: Sequence[object]) -> DataFrame:
        """Return a frame with the number of each task, ``id``, in a partition of its own.

        Tasks of frames share their Python workers; a task of an RDD would start workers of its own.
        """
        Runner._has_workers = True
        return self.spark.range(len(tasks), numPartitions=len(tasks))

    def _is_small(self, parts: Sequence[RowGroups]) -> bool:
        if self.takes_all_work:
            return False
        is_cold = not is_running() or (is_local(self._session) and not self._has_workers)
        return _size(parts) <= (_SMALL_BYTES_COLD if is_cold else _SMALL_BYTES)

    def _tasks(self, parts: Sequence[RowGroups]) -> list[list[RowGroups]]:
        """As many tasks as the cores have turns for, so that all cores finish together."""
        cores = self.spark.sparkContext.defaultParallelism
        turns = max(-(-_size(parts) // (_TASK_BYTES * cores)), 1)
        return divided(parts, turns * cores)


def _size(parts: Iterable[RowGroups]) -> int:
    return sum(part.size for part in parts)
