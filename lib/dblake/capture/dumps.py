"""Dumps beside the log: threads that read the queued tables chunk by chunk, each on its own connection.

For each chunk: low watermark, the rows, high watermark (DBLog, algorithm 1, steps 2 to 4), without pausing the log.
Which chunk comes next and what has landed is ``schedule``'s business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from dblake.capture.batch import BatchBuilder, Closed
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import Key, throttle
from dblake.capture.retry import retrying
from dblake.capture.schedule import Lane, Schedule
from dblake.capture.settings import DumpSettings
from dblake.capture.throttle import Pace
from dblake.capture.windows import OpenChunk, Windows
from dblake.core.errors import Unsupported
from dblake.core.failpoints import failpoint
from dblake.core.schema import TableSchema
from dblake.core.source import ChunkReader, ChunkRequest, Source

_LOOK_SECONDS = 0.25
_STRETCHES_A_READER = 4
"""A table is divided into so many more stretches than there are readers, so that all of them end at about one time."""
_CHUNKS_A_STRETCH = 4
"""A stretch of fewer chunks is not worth a chunk more at its end."""

_FIRST_ROWS = 1000
"""A table's first chunk: how wide its rows are is not known yet."""
_CHUNK_BYTES = 16 << 20
"""About what a chunk weighs at most, so that its transaction stays short however wide the rows are."""

T = TypeVar("T")


class DumpRunner:
    """Carries out the dumps queued in the progress store."""

    def __init__(
        self, source: Source, store: ProgressStore, batches: BatchBuilder, windows: Windows, settings: DumpSettings,
        *, reconnect_seconds: float,
    ) -> None:
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._batches = batches
        self._schedule = Schedule(store)
        self.error: BaseException | None = None
        self._readers = [
            _Reader(number, source, store, batches, windows, settings, self._schedule, self._stop, self._closed,
                    reconnect_seconds)
            for number in range(1, settings.readers + 1)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(reader,), name=f"dumps-{number}", daemon=True)
            for number, reader in enumerate(self._readers, start=1)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Starts no more chunks. The threads end once those under way have landed."""
        self._stop.set()

    def close(self) -> None:
        """Ends the threads; chunks under way are read again by the next capture."""
        self._stop.set()
        self._closed.set()
        self._batches.close()
        for thread in self._threads:
            thread.join(timeout=30)
        for reader in self._readers:
            reader.close()

    @property
    def busy(self) -> bool:
        """True while chunks are under way, or may still be started."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def idle(self) -> bool:
        """True if no dump is asked for or under way, as far as was looked."""
        return self._schedule.idle

    @property
    def reading(self) -> bool:
        """True while rows may come at any moment."""
        return self._schedule.reading

    def asked(self) -> None:
        """Tells that a dump was asked for, so that it is looked for at once."""
        self._schedule.asked()

    def landed(self, chunk: OpenChunk) -> None:
        """Tells that a chunk's window has landed."""
        self._schedule.landed(chunk)

    def _run(self, reader: _Reader) -> None:
        try:
            while not self._closed.is_set():
                stopping = self._stop.is_set()
                lane = self._schedule.next(stopping=stopping)
                if lane is not None:
                    reader.go_on(lane)
                elif stopping and self._schedule.ended():
                    return
                else:
                    self._schedule.wait(_LOOK_SECONDS)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - the log loop raises it in its own thread
            self.error = error


class _Reader:
    """One chunk reader: its connection, and its row of the watermark table."""

    def __init__(
        self, number: int, source: Source, store: ProgressStore, batches: BatchBuilder, windows: Windows,
        settings: DumpSettings, schedule: Schedule, stop: threading.Event, closed: threading.Event,
        reconnect_seconds: float,
    ) -> None:
        self._number, self._source, self._store, self._batches, self._windows = number, source, store, batches, windows
        self._settings, self._schedule, self._stop, self._closed = settings, schedule, stop, closed
        self._reconnect_seconds = reconnect_seconds
        self._connected: ChunkReader | None = None
        self._pace = Pace(settings)
        self._latency = 0.0

    def go_on(self, lane: Lane) -> None:
        """Divides the lane's table, if it has not begun, or reads the lane's next chunk."""
        slow = throttle(self._store)
        limit = slow.chunk_size or self._settings.chunk_size
        try:
            if not lane.task.stretches:
                self._schedule.divided(lane, self._boundaries(lane, limit))
                return
            affordable = _FIRST_ROWS if lane.row_bytes is None else int(_CHUNK_BYTES / lane.row_bytes)
            began = time.monotonic()
            self._read_chunk(lane, min(limit, max(affordable, 1)))
        except Unsupported as error:
            self._schedule.failed(lane, error.what)
            return
        rest = self._pace.rest(slow, worked=time.monotonic() - began, latency=self._latency)
        self._stop.wait(rest)

    def close(self) -> None:
        """Ends the connection."""
        if self._connected:
            self._connected.close()
        self._connected = None

    def _boundaries(self, lane: Lane, limit: int) -> list[Key]:
        if self._settings.readers == 1 or lane.task.keys is not None:
            return []
        parts, rows = self._settings.readers * _STRETCHES_A_READER, limit * _CHUNKS_A_STRETCH
        return list(self._persistently(lambda reader: reader.split_points(lane.task.table, parts, rows)))

    def _read_chunk(self, lane: Lane, limit: int) -> None:
        asked = lane.task.keys
        if lane.closes:
            chunk, _, _ = self._persistently(lambda reader: self._read(reader, lane, 0, None))
            self._schedule.read(lane, chunk, None, exhausted=True)
            return
        if asked is None:
            chunk, rows, last_key = self._persistently(lambda reader: self._read(reader, lane, limit, None))
            self._schedule.read(lane, chunk, last_key or lane.after, exhausted=rows < limit)
            return
        start = asked.index(lane.after) + 1 if lane.after is not None else 0
        keys = asked[start : start + limit]
        chunk, _, _ = self._persistently(lambda reader: self._read(reader, lane, limit, keys))
        self._schedule.read(lane, chunk, keys[-1] if keys else lane.after, exhausted=start + limit >= len(asked))

    def _read(
        self, reader: ChunkReader, lane: Lane, limit: int, keys: tuple[Key, ...] | None
    ) -> tuple[OpenChunk, int, Key | None]:
        """Low watermark, rows, high watermark; on a broken connection the next try is a new chunk."""
        chunk = OpenChunk(lane.task.id, lane.task.table, self._schedule.number(lane), lane.closes)
        after, upto = (lane.after, lane.upto) if keys is None else (None, None)
        request = ChunkRequest(lane.task.table, self._number, chunk.chunk_id, limit, after=after, upto=upto, keys=keys)
        delivery = _Delivery(self._batches, chunk, reader)
        self._windows.open(chunk)
        try:
            asked = time.monotonic()
            reader.mark(self._number, chunk.chunk_id)
            self._latency = time.monotonic() - asked
            failpoint("dump.low_written")
            read = chunk.read = reader.read(request, delivery)
            failpoint("dump.chunk_read")
            reader.mark(self._number, chunk.high_value)
            failpoint("dump.high_written")
        except BaseException:
            self._windows.forget(chunk)
            raise
        if read.rows:
            lane.row_bytes = delivery.bytes / read.rows
        return chunk, read.rows, read.last_key

    def _persistently(self, ask: Callable[[ChunkReader], T]) -> T:
        """Asks the database; on a new connection, after a while, if that broke."""
        def once() -> T:
            try:
                if self._connected is None:
                    self._connected = self._source.open_reader()
                return ask(self._connected)
            except BaseException:
                self.close()
                raise

        return retrying(self._reconnect_seconds, self._closed)(once)


class _Delivery:
    """Hands a chunk's rows to the batch as they come, numbered through the chunk."""

    def __init__(self, batches: BatchBuilder, chunk: OpenChunk, reader: ChunkReader) -> None:
        self._batches, self._chunk, self._reader = batches, chunk, reader
        self._rows = self.bytes = 0

    def __call__(self, payload: pa.BinaryArray, schema: TableSchema) -> None:
        self._batches.add_chunk(self._chunk, schema, self._rows, payload, self._reader.format)
        self._rows += len(payload)
        self.bytes += payload.nbytes
