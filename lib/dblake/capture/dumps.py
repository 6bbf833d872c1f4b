"""Dumps beside the log: one thread that reads the queued tables chunk by chunk.

For each chunk: low watermark, the rows, high watermark (DBLog, algorithm 1, steps 2 to 4), without pausing the log.
The next chunk, of the same table or the next, is read before the last one's high watermark has landed; progress is
saved only for chunks whose window has landed, in order, so a crash costs the chunks under way and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
)

from dblake.capture.batch import BatchBuilder, Closed
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import Control, DumpTask, control, pending, save_progress, throttle
from dblake.capture.settings import DumpSettings
from dblake.capture.windows import OpenChunk, Windows
from dblake.core.errors import SourceError, UnsupportedByName
from dblake.core.failpoints import failpoint
from dblake.core.schema import TableSchema
from dblake.core.source import ChunkReader, ChunkRequest, Source

_AHEAD = 64
"""Chunks read whose windows have not landed yet; what they weigh is bounded by the batch they wait to enter."""
_LOOK_SECONDS = 0.25
_QUEUE_SECONDS = 2.0
"""How old the known queue of dumps may get; looking costs two documents a table."""
_MOST_DISCARDS = 10
"""So many chunks discarded in a row mean that the table cannot be dumped as things are."""
_READER = 1

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reading:
    """The table being dumped. ``after`` is where the next chunk starts; ``task`` knows what has landed.

    ``unsaved`` is true while the progress kept knows less than ``task``.
    """

    task: DumpTask
    after: tuple[str, ...] | None
    number: int
    under_way: deque[OpenChunk] = field(default_factory=deque)
    exhausted: bool = False
    wanted: Control = Control.RUN
    discards: int = 0
    unsaved: bool = False


class DumpRunner:
    """Carries out the dumps queued in the progress store, in their order."""

    def __init__(
        self, source: Source, store: ProgressStore, batches: BatchBuilder, windows: Windows, settings: DumpSettings,
        *, reconnect_seconds: float,
    ) -> None:
        self._source, self._store, self._batches, self._windows = source, store, batches, windows
        self._settings = settings
        self._reconnect_seconds = reconnect_seconds
        self._landed: queue.SimpleQueue[OpenChunk] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._reader: ChunkReader | None = None
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._queue: deque[DumpTask] = deque()
        self._looked = float("-inf")
        self.idle = False
        self.reading = True
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dumps", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Starts no more chunks. The thread ends once those under way have landed."""
        self._stop.set()

    def close(self) -> None:
        """Ends the thread; chunks under way are read again by the next capture."""
        self._stop.set()
        self._closed.set()
        self._batches.close()
        self._thread.join(timeout=30)
        if self._reader:
            self._reader.close()

    @property
    def busy(self) -> bool:
        """True while chunks are under way, or may still be started."""
        return self._thread.is_alive()

    def landed(self, chunk: OpenChunk) -> None:
        """Tells that a chunk's window has landed."""
        self._landed.put(chunk)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                reading = self._next_reading()
                self.reading = reading is not None
                self.idle = reading is None and not self._readings
                if reading is not None:
                    self._read_chunk(reading)
                    self._take_landed(wait=0.0)
                elif self._stop.is_set() and not self._readings:
                    return
                else:
                    self._take_landed(wait=_LOOK_SECONDS)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - the log loop raises it in its own thread
            self.error = error

    def _next_reading(self) -> _Reading | None:
        """The table to read the next chunk of; None if there is none, or enough is under way."""
        self._close_books()
        if self._stop.is_set() or sum(len(r.under_way) for r in self._readings.values()) >= _AHEAD:
            return None
        for reading in self._readings.values():
            if reading.wanted is Control.RUN and not reading.exhausted:
                reading.wanted = control(self._store, reading.task)
                if reading.wanted is Control.RUN:
                    return reading
        task = self._next_task()
        if task is None:
            return None
        logger.info("dump %s of %s starts after %d chunks", task.id, task.table, task.chunks)
        reading = _Reading(save_progress(self._store, task.running()), after=task.last_key, number=task.chunks + 1)
        self._readings[task.id, task.table] = reading
        return reading

    def _next_task(self) -> DumpTask | None:
        if not self._queue and time.monotonic() - self._looked >= (_QUEUE_SECONDS if self._readings else 0):
            self._queue.extend(t for t in pending(self._store) if (t.id, t.table) not in self._readings)
            self._looked = time.monotonic()
        while self._queue:
            task = self._queue.popleft()
            if control(self._store, task) is Control.RUN:
                return task
        return None

    def _close_books(self) -> None:
        """Ends the tables of which nothing is under way and nothing more is to be read."""
        for key, reading in list(self._readings.items()):
            if reading.under_way or not (self._stop.is_set() or reading.exhausted or reading.wanted is not Control.RUN):
                continue
            del self._readings[key]
            if reading.exhausted:
                done = save_progress(self._store, reading.task.done())
                logger.info("dump %s of %s is done: %d rows", done.id, done.table, done.rows)
            elif reading.wanted is Control.PAUSE:
                save_progress(self._store, reading.task.paused())
            elif reading.wanted is Control.CANCEL:  # or the request was lost with the store
                save_progress(self._store, reading.task.cancelled())

    def _fail(self, reading: _Reading, why: str) -> None:
        logger.error("dump %s of %s failed: %s", reading.task.id, reading.task.table, why)
        save_progress(self._store, reading.task.failed(why))
        self._readings.pop((reading.task.id, reading.task.table), None)

    def _read_chunk(self, reading: _Reading) -> None:
        slow = throttle(self._store)
        limit = slow.chunk_size or self._settings.chunk_size
        keys, last_requested = self._next_keys(reading, limit)
        retry = Retrying(
            retry=retry_if_exception(lambda e: isinstance(e, SourceError) and e.retryable),
            wait=wait_exponential(multiplier=0.2, max=15),
            stop=stop_after_delay(self._reconnect_seconds) | stop_when_event_set(self._closed),
            sleep=sleep_using_event(self._closed),
            reraise=True,
        )
        try:
            chunk = retry(self._read_once, reading, limit, keys)
        except UnsupportedByName as error:
            self._fail(reading, error.what)
            return
        assert chunk.read is not None
        reading.under_way.append(chunk)
        reading.number += 1
        if keys is not None:
            reading.after = chunk.end = last_requested
            reading.exhausted = reading.task.keys is None or last_requested == reading.task.keys[-1]
        else:
            reading.after = chunk.end = chunk.read.last_key or reading.after
            reading.exhausted = chunk.read.rows < limit
        self._stop.wait(slow.delay if slow.delay is not None else self._settings.delay)

    @staticmethod
    def _next_keys(
        reading: _Reading, limit: int
    ) -> tuple[tuple[tuple[str, ...], ...] | None, tuple[str, ...] | None]:
        """The next of the keys asked for, and the last of them; None for a dump of all rows."""
        asked = reading.task.keys
        if asked is None:
            return None, None
        start = asked.index(reading.after) + 1 if reading.after is not None else 0
        keys = asked[start : start + limit]
        return keys, keys[-1] if keys else reading.after

    def _read_once(
        self, reading: _Reading, limit: int, keys: tuple[tuple[str, ...], ...] | None
    ) -> OpenChunk:
        """Low watermark, rows, high watermark; on a broken connection the next try is a new chunk."""
        task = reading.task
        chunk = OpenChunk(task.id, task.table, reading.number, reading.after)
        request = ChunkRequest(
            task.table, _READER, chunk.chunk_id, limit, after=None if keys is not None else reading.after, keys=keys
        )
        self._windows.open(chunk)
        try:
            if self._reader is None:
                self._reader = self._source.open_reader()
            self._reader.mark(_READER, chunk.chunk_id)
            failpoint("dump.low_written")
            chunk.read = self._reader.read(request, _Delivery(self._batches, chunk, self._reader.format))
            failpoint("dump.chunk_read")
            self._reader.mark(_READER, chunk.high_value)
            failpoint("dump.high_written")
        except BaseException:
            self._windows.forget(chunk)
            if self._reader:
                self._reader.close()
            self._reader = None
            raise
        return chunk

    def _take_landed(self, *, wait: float) -> None:
        """Saves progress for the chunks whose windows have landed, once for all that landed together."""
        while True:
            try:
                chunk = self._landed.get(timeout=wait) if wait else self._landed.get_nowait()
            except queue.Empty:
                break
            wait = 0.0
            reading = self._readings.get((chunk.dump_id, chunk.table))
            if reading is None or not reading.under_way or chunk is not reading.under_way[0]:
                continue  # read after a chunk that was discarded: its rows count, but it is read once more
            reading.under_way.popleft()
            if chunk.discarded:
                self._go_back(reading, chunk)
                continue
            assert chunk.read is not None
            reading.discards = 0
            reading.task, reading.unsaved = reading.task.landed(chunk.read.rows, chunk.end), True
        for reading in self._readings.values():
            if reading.unsaved:
                failpoint("dump.before_progress")
                save_progress(self._store, reading.task)
                reading.unsaved = False
                failpoint("dump.progress_saved")

    def _go_back(self, reading: _Reading, chunk: OpenChunk) -> None:
        """Makes a discarded chunk the next one to be read."""
        logger.warning("chunk %d of %s was discarded: %s", chunk.number, chunk.table, chunk.discarded)
        reading.under_way.clear()
        reading.after, reading.number, reading.exhausted = chunk.after, chunk.number, False
        reading.discards += 1
        if reading.discards >= _MOST_DISCARDS:
            self._fail(reading, f"{_MOST_DISCARDS} chunks in a row were discarded; the ledger of windows says why")


class _Delivery:
    """Hands a chunk's rows to the batch as they come, numbered through the chunk."""

    def __init__(self, batches: BatchBuilder, chunk: OpenChunk, format_: str) -> None:
        self._batches, self._chunk, self._format = batches, chunk, format_
        self._rows = 0

    def __call__(self, payload: pa.BinaryArray, schema: TableSchema) -> None:
        self._batches.add_chunk(self._chunk, schema, self._rows, payload, self._format)
        self._rows += len(payload)
