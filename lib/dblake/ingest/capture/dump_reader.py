"""A chunk reader: reads chunks of a table on its own connection, with its own row of the watermark table.

For each chunk: write the low watermark, read the rows, write the high watermark (DBLog, algorithm 1, steps 2 to 4),
without pausing the log. Guarantee: a connection that breaks costs the current chunk, which is read again as a new one.
Which chunk is next is left to ``schedule``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from dblake.base.core.errors import TableUnreadable, Unsupported
from dblake.base.core.failpoints import failpoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import ChunkReader, ChunkRequest
from dblake.base.core.steps import step
from dblake.ingest.capture.batch import BatchBuilder, NoRoom
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dump_task import TABLE_SUSPENDED, Key
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.capture.retry import retrying
from dblake.ingest.capture.schedule import Schedule
from dblake.ingest.capture.table_dump import RangeReader
from dblake.ingest.capture.throttle import DumpThrottle, read_throttle
from dblake.ingest.capture.windows import Windows
from dblake.ingest.imports.reader import FileRows
from dblake.ingest.imports.spec import ImportSpec

_RANGES_PER_READER = 4
"""A table is split into so many more ranges than there are readers, so that all readers finish at about one time."""
_MIN_CHUNKS_PER_RANGE = 4
"""A smaller range is not worth the chunk that ends it."""
_SAMPLED_RANGES = 256
"""A table is split into up to so many ranges to choose some of them."""
_FIRST_CHUNK_ROWS = 1000
"""The size of a table's first chunk: the width of its rows is not known yet."""
_MAX_CHUNK_BYTES = 16 << 20
"""About the largest chunk, so that its transaction stays short however wide the rows are."""
_MAX_STALL_SECONDS = 5.0
"""How long landing may keep a chunk's transaction waiting: an open one keeps the database from removing dead rows."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What the chunk readers of one capture share.

    After ``stop`` no chunk is started; after ``closed`` the current one is abandoned.
    """

    capture: CaptureContext
    schedule: Schedule
    batches: BatchBuilder
    windows: Windows
    suspended: Callable[[], Mapping[str, str]]
    stop: threading.Event
    closed: threading.Event


class DumpReader:
    """One chunk reader; ``number`` is its row of the watermark table."""

    def __init__(self, number: int, context: ReaderContext) -> None:
        self._number, self._context = number, context
        self._settings = context.capture.dump_settings
        self._connection: ChunkReader | None = None
        self._throttle = DumpThrottle(self._settings)
        self._latency = 0.0

    def advance(self, part: RangeReader) -> None:
        """Split the range's table, if it has not started, or read the range's next chunk and pause."""
        if reason := self._context.suspended().get(part.task.table):
            self._context.schedule.fail(part, f"{TABLE_SUSPENDED}: {reason}")
            return
        throttle = read_throttle(self._context.capture.store)
        limit = throttle.chunk_size or self._settings.chunk_size
        try:
            if not part.task.ranges:
                self._context.schedule.split(part, self._split_points(part, limit))
                return
            affordable = _FIRST_CHUNK_ROWS if part.row_bytes is None else int(_MAX_CHUNK_BYTES / part.row_bytes)
            # Before the chunk's transaction begins: it must not wait for landing.
            self._context.batches.wait_for_room()
            began = time.monotonic()
            limit = min(limit, max(affordable, 1))
            self._read_next(part, limit)
        except Unsupported as error:
            self._context.schedule.fail(part, error.what)
            return
        except TableUnreadable as error:
            self._context.schedule.put_off(part, error)
            return
        except NoRoom:
            logger.info("a chunk of %s is read again, smaller: landing did not take it in time", part.task.table)
            part.row_bytes = 2.0 * _MAX_CHUNK_BYTES / limit
            self._context.schedule.release(part)
            return
        pause = self._throttle.pause_after(throttle, worked=time.monotonic() - began, latency=self._latency)
        self._context.stop.wait(pause)

    def close(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _split_points(self, part: RangeReader, limit: int) -> list[Key]:
        if not part.task.is_divisible or (self._settings.readers == 1 and not part.task.is_sampled):
            return []
        parts, rows = self._settings.readers * _RANGES_PER_READER, limit * _MIN_CHUNKS_PER_RANGE
        if part.task.is_sampled:
            parts, rows = _SAMPLED_RANGES, limit
        return list(self._retry(lambda reader: reader.split_points(part.task.table, parts, rows)))

    def _read_next(self, part: RangeReader, limit: int) -> None:
        requested, schedule = part.task.keys, self._context.schedule
        if part.closes:
            chunk, _, _ = self._retry(lambda reader: self._read_chunk(reader, part, 0, None))
            schedule.add_chunk(part, chunk, None, exhausted=True)
            return
        if requested is None:
            chunk, rows, last_key = self._retry(lambda reader: self._read_chunk(reader, part, limit, None))
            schedule.add_chunk(part, chunk, last_key or part.after, exhausted=rows < limit)
            return
        start = requested.index(part.after) + 1 if part.after is not None else 0
        keys = requested[start : start + limit]
        chunk, _, _ = self._retry(lambda reader: self._read_chunk(reader, part, limit, keys))
        schedule.add_chunk(part, chunk, keys[-1] if keys else part.after, exhausted=start + limit >= len(requested))

    def _read_chunk(
        self, reader: ChunkReader, part: RangeReader, limit: int, keys: tuple[Key, ...] | None
    ) -> tuple[OpenChunk, int, Key | None]:
        """Write the low watermark, read the rows, write the high one; return the chunk, its rows and its last key."""
        number = self._context.schedule.next_number(part)
        chunk = _open_chunk(part, number)
        after, upto = (part.after, part.upto) if keys is None else (None, None)
        request = ChunkRequest(
            part.task.table, self._number, chunk.chunk_id, limit, after=after, upto=upto, keys=keys,
            rows=_files_of(part, chunk.imported).chunk(after, limit) if chunk.imported else None,
        )
        delivery = _Delivery(self._context.batches, chunk, reader)
        self._context.windows.open(chunk)
        try:
            with step("capture.chunk", table=chunk.table, chunk=chunk.chunk_id) as span:
                began = time.monotonic()
                reader.mark(self._number, chunk.chunk_id)
                self._latency = time.monotonic() - began
                failpoint("dump.low_written")
                read = chunk.read = reader.read(request, delivery)
                _require_same_schema(chunk)
                failpoint("dump.chunk_read")
                reader.mark(self._number, chunk.high_value)
                failpoint("dump.high_written")
                span.note(rows=read.rows, bytes=delivery.bytes)
        except BaseException:
            self._context.windows.abandon(chunk)
            raise
        if read.rows:
            part.row_bytes = delivery.bytes / read.rows
        return chunk, read.rows, read.last_key

    def _retry(self, call: Callable[[ChunkReader], T]) -> T:
        """Call with the connection; after a failure, retry on a new connection."""
        def once() -> T:
            try:
                if self._connection is None:
                    self._connection = self._context.capture.source.open_reader()
                return call(self._connection)
            except BaseException:
                self.close()
                raise

        return retrying(self._context.capture.settings.reconnect_seconds, self._context.closed)(once)


def _files_of(part: RangeReader, imported: ImportSpec) -> FileRows:
    part.files = part.files or FileRows(imported)
    return part.files


def _require_same_schema(chunk: OpenChunk) -> None:
    """Raise Unsupported if the table of an import changed since it was queued: its files have another schema."""
    if chunk.imported and chunk.read and chunk.read.schema.schema_id != chunk.imported.schema_id:
        raise Unsupported(
            f"table {chunk.table} changed its columns, types or key since the import was queued",
            next_step="export the table again at a later position, and import that; or run dump start",
        )


def _open_chunk(part: RangeReader, number: int) -> OpenChunk:
    request = part.task.request
    imported = None if part.closes else request.imported
    # The last chunk deletes what the chunks before it did not return: it needs the same log as they.
    first_batch = request.imported.first_batch if request.imported else None
    return OpenChunk(
        request.id, request.table, number, part.closes, request.keys if request.removes else None,
        verify=request.verify, sampled=part.task.is_sampled, max_removed=request.max_removed,
        imported=imported, first_batch=first_batch,
    )


class _Delivery:
    """Adds a chunk's rows to the batch as they arrive, numbered through the chunk; counts their payload bytes."""

    def __init__(self, batches: BatchBuilder, chunk: OpenChunk, reader: ChunkReader) -> None:
        self._batches, self._chunk, self._reader = batches, chunk, reader
        self._rows = self.bytes = 0
        # An import has no transaction that would last.
        self._patience = float("inf") if chunk.imported else _MAX_STALL_SECONDS

    def __call__(self, payload: pa.BinaryArray, schema: TableSchema) -> None:
        """Add undecoded rows of one schema."""
        began = time.monotonic()
        self._batches.add_chunk(
            self._chunk, schema, self._rows, payload, self._reader.format, wait_seconds=self._patience
        )
        self._patience -= time.monotonic() - began
        self._rows += len(payload)
        self.bytes += payload.nbytes
