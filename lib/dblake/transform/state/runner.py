"""Where the tasks of a state run are executed: threads of this process, or Spark's executors.

A task is a function of values that can be pickled; it reads and writes files and starts no Spark job. On one machine
threads are cheapest, because Arrow and delta-rs release Python's global lock and no value is copied. On a cluster the
tasks go to the executors. ``exchange`` groups what tasks produce by bucket, as a shuffle does, in bounded memory.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from dblake.base.core.steps import in_step
from dblake.transform.spark.session import Session, is_local, takes_all_work
from dblake.transform.spark.task_results import RESULT, numbers_of, result_batch, results_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
_MIN_TASKS = 64
"""Items share a task only if there are more."""
_PIECE = pa.schema([("bucket", pa.int32()), ("rows", pa.binary())])


class TaskRunner(Protocol):
    """Executes up to ``parallel`` tasks at a time, in threads of this process or elsewhere."""

    parallel: int

    @property
    def is_in_process(self) -> bool:
        """Whether items and results stay in this process, and may hold rows."""

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the task's result for each item, in the order of the items."""
        ...

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], Result],
    ) -> Iterator[Result]:
        """Yield ``combine`` of all rows that ``split`` puts into a bucket, for each bucket that has rows, in order."""
        ...


class LocalRunner:
    """Executes tasks in threads of this process."""

    is_in_process = True

    def __init__(self, parallel: int) -> None:
        self.parallel = parallel

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Run the tasks, so many at a time."""
        if len(items) < 2 or self.parallel < 2:
            yield from map(task, items)
            return
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="state") as pool:
            yield from pool.map(in_step(task), items)

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], Result],
    ) -> Iterator[Result]:
        """Keep the rows of each bucket in a temporary file until all are split."""
        with tempfile.TemporaryDirectory(prefix="dblake-state-") as folder:
            spill = _Spill(Path(folder))

            def split_item(item: Item) -> None:
                for bucket, rows in split(item):
                    spill.add(bucket, rows)

            for _ in self.run_all(split_item, items):
                pass
            for bucket in range(buckets):
                rows = spill.read(bucket)
                if rows is not None:
                    yield combine(rows)


class _Spill:
    """Temporary files, one per bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._lock = threading.Lock()

    def add(self, bucket: int, rows: pa.Table) -> None:
        with self._lock:
            if bucket not in self._writers:
                self._writers[bucket] = pa.ipc.new_stream(str(self._folder / f"{bucket}"), rows.schema)
            self._writers[bucket].write_table(rows)

    def read(self, bucket: int) -> pa.Table | None:
        writer = self._writers.pop(bucket, None)
        if writer is None:
            return None
        writer.close()
        with pa.OSFile(str(self._folder / f"{bucket}")) as source:
            return pa.ipc.open_stream(source).read_all()


class SparkRunner:
    """Executes tasks on Spark's executors. Items, tasks and results pass through the driver: rows should not."""

    is_in_process = False

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.parallel = spark.sparkContext.defaultParallelism

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Run the tasks as one Spark job; the task itself is sent once to each executor."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            function, waiting = shared.value
            for number in numbers_of(batches):
                yield result_batch(number, function, waiting[number])

        if not items:
            return
        shared = self._spark.sparkContext.broadcast((task, items))
        try:
            yield from results_of(self._numbered(len(items)).mapInArrow(run, RESULT).collect())
        finally:
            shared.unpersist()

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], Result],
    ) -> Iterator[Result]:
        """Shuffle the rows of each bucket to one task, which combines them."""

        def split_items(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            function, waiting, _ = shared.value
            for number in numbers_of(batches):
                for bucket, rows in function(waiting[number]):
                    yield pa.RecordBatch.from_pydict({"bucket": [bucket], "rows": [to_bytes(rows)]}, _PIECE)

        def combine_buckets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pieces = (
                (bucket, piece) for batch in batches
                for bucket, piece in zip(*(batch.column(name).to_pylist() for name in _PIECE.names), strict=True)
            )
            for bucket, of_bucket in groupby(pieces, key=lambda piece: piece[0]):
                rows = pa.concat_tables([from_bytes(piece) for _, piece in of_bucket])
                yield result_batch(bucket, shared.value[2], rows)

        if not items:
            return
        shared = self._spark.sparkContext.broadcast((split, items, combine))
        try:
            shuffled = self._numbered(len(items)).mapInArrow(split_items, "bucket int, rows binary").repartitionById(
                buckets, "bucket"
            ).sortWithinPartitions("bucket")
            yield from results_of(shuffled.mapInArrow(combine_buckets, RESULT).collect())
        finally:
            shared.unpersist()

    def _numbered(self, count: int) -> DataFrame:
        parts = min(count, max(4 * self.parallel, _MIN_TASKS))
        return self._spark.range(count, numPartitions=parts)


def choose_runner(session: Session, parallel: int) -> TaskRunner:
    """Return the runner for a session: threads, without starting Spark, if its executors are this machine.

    With the engine ``spark`` tasks run in Spark there, too.
    """
    if is_local(session) and not takes_all_work(session):
        return LocalRunner(parallel)
    return SparkRunner(session())


def to_bytes(rows: pa.Table) -> bytes:
    """Serialize a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_bytes(data: bytes) -> pa.Table:
    """Return the table that ``to_bytes`` serialized."""
    return pa.ipc.open_stream(data).read_all()
