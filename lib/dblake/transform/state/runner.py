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
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from dblake.transform.spark.session import Session, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
_MIN_TASKS = 64
"""Items share a task only if there are more."""


class TaskRunner(Protocol):
    """Executes tasks. ``max_item_bytes`` limits the images in an item, None if nothing does."""

    max_item_bytes: int | None

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the task's result for each item, in the order of the items."""
        ...

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], pa.Table],
    ) -> Iterator[pa.Table]:
        """Yield ``combine`` of all rows that ``split`` puts into a bucket, for each bucket that has rows, in order."""
        ...


class LocalRunner:
    """Executes tasks in threads of this process."""

    max_item_bytes: int | None = None

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Run the tasks, so many at a time."""
        if len(items) < 2 or self._parallel < 2:
            yield from map(task, items)
            return
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="state") as pool:
            yield from pool.map(task, items)

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], pa.Table],
    ) -> Iterator[pa.Table]:
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
    """Executes tasks on Spark's executors."""

    # Items travel in Spark's messages, of at most 128 MB; an image's position and key may be larger than itself.
    max_item_bytes: int | None = 16 << 20

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def run_all(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Run the tasks as one Spark job; the task itself is sent once to each executor."""
        if not items:
            return
        shared = self._context.broadcast(task)
        parts = min(len(items), max(4 * self._context.defaultParallelism, _MIN_TASKS))
        try:
            # A lambda, so that the executor loads the broadcast value, not the driver.
            run = lambda item: shared.value(item)  # noqa: E731, PLW0108
            yield from self._context.parallelize(items, parts).map(run).collect()
        finally:
            shared.unpersist()

    def exchange(
        self, split: Callable[[Item], Iterable[tuple[int, pa.Table]]], items: Sequence[Item], buckets: int,
        combine: Callable[[pa.Table], pa.Table],
    ) -> Iterator[pa.Table]:
        """Shuffle the rows of each bucket to one task; the driver holds one bucket at a time."""

        def split_item(item: Item) -> Iterator[tuple[int, bytes]]:
            return ((bucket, to_bytes(rows)) for bucket, rows in split(item))

        def combine_bucket(pair: tuple[int, Iterable[bytes]]) -> bytes:
            return to_bytes(combine(pa.concat_tables([from_bytes(part) for part in pair[1]])))

        shuffled = (
            self._context.parallelize(items, len(items)).flatMap(split_item)
            .groupByKey(buckets, lambda bucket: bucket).map(combine_bucket)
        )
        for result in shuffled.toLocalIterator(prefetchPartitions=True):
            yield from_bytes(result)


def choose_runner(session: Session, parallel: int) -> TaskRunner:
    """Return the runner for a session: threads, without starting Spark, if its executors are this machine."""
    return LocalRunner(parallel) if is_local(session) else SparkRunner(session())


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
