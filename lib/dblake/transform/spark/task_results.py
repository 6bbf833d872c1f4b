"""Results of tasks on executors, on their way to the driver: pickled, numbered, and with errors of ours as they are.

Place: below the runners of reconcile and state, which hand out the tasks. A frame of results has RESULT's columns.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dblake.base.core.errors import DblakeError

if TYPE_CHECKING:
    from pyspark.sql import Row

RESULT = "number bigint, result binary"
_RESULT = pa.schema([("number", pa.int64()), ("result", pa.binary())])


def numbers_of(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the tasks that a frame of ``range`` gives this one."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def result_batch(number: int, task: Callable[..., object], *arguments: object) -> pa.RecordBatch:
    """Run one task on an executor; an error of ours is a result, so that it reaches the driver as it is."""
    try:
        result = task(*arguments)
    except DblakeError as error:
        result = error
    return pa.RecordBatch.from_pydict({"number": [number], "result": [pickle.dumps(result)]}, _RESULT)


def results_of(rows: Iterable[Row]) -> Iterator[Any]:
    """Yield the results of tasks, in the order of their numbers. Raises what a task raised."""
    for row in sorted(rows, key=itemgetter("number")):
        result = pickle.loads(row["result"])  # noqa: S301 - pickled by our own task
        if isinstance(result, DblakeError):
            raise result
        yield result
