"""Dumps beside the log: one thread that reads the queued tables chunk by chunk.

For each chunk: low watermark, the rows, high watermark (DBLog, algorithm 1, steps 2 to 4), without pausing the log.
The next chunk is read before the last one's high watermark has landed, a few at a time; progress is saved only for
chunks whose window has landed, in order, so a crash costs the chunks under way and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from dblake.capture.batch import BatchBuilder, Closed
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import Control, DumpTask, control, pending, save_progress, throttle
from dblake.capture.settings import DumpSettings
from dblake.capture.windows import OpenChunk, Windows
from dblake.core.errors import SourceError, UnsupportedByName
from dblake.core.failpoints import failpoint
from dblake.core.schema import TableSchema
from dblake.core.source import ChunkReader, ChunkRequest, Source

_AHEAD = 4
"""Chunks read whose windows have not landed yet."""
_LOOK_SECONDS = 0.25
_MOST_DISCARDS = 10
"""So many chunks discarded in a row mean that the table cannot be dumped as things are."""
_READER = 1

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reading:
    """The table being dumped. ``after`` is where the next chunk starts; ``task`` knows what has landed."""

    task: DumpTask
    after: tuple[str, ...] | None
    number: int
    under_way: deque[OpenChunk] = field(default_factory=deque)
    exhausted: bool = False
    discards: int = 0


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
        self.idle = False
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
            while not self._stop.is_set():
                task = next(iter(pending(self._store)), None)
                # Looked at by the log loop, which takes two looks at it with a heartbeat between them.
                self.idle = task is None
                if task is None:
                    self._stop.wait(_LOOK_SECONDS)
                else:
                    self._dump(task)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - the log loop raises it in its own thread
            self.error = error

    def _dump(self, task: DumpTask) -> None:
        """One table, until it is done, failed, paused or cancelled, or capture stops."""
        logger.info("dump %s of %s starts after %d chunks", task.id, task.table, task.chunks)
        reading = _Reading(save_progress(self._store, task.running()), after=task.last_key, number=task.chunks + 1)
        while not self._closed.is_set():
            wanted = Control.RUN if reading.exhausted else control(self._store, reading.task)
            if not self._stop.is_set() and wanted is Control.RUN and not reading.exhausted \
                    and len(reading.under_way) < _AHEAD:
                try:
                    self._read_chunk(reading)
                except UnsupportedByName as error:
                    self._fail(reading, error.what)
                    return
                self._take_landed(reading, wait=0.0)
            elif reading.under_way:
                self._take_landed(reading, wait=_LOOK_SECONDS)
            else:
                self._leave(reading, wanted)
                return
            if reading.discards >= _MOST_DISCARDS:
                self._fail(reading, f"{_MOST_DISCARDS} chunks in a row were discarded; the ledger of windows says why")
                return

    def _leave(self, reading: _Reading, wanted: Control) -> None:
        if reading.exhausted:
            done = save_progress(self._store, reading.task.done())
            logger.info("dump %s of %s is done: %d rows", done.id, done.table, done.rows)
        elif wanted is Control.PAUSE:
            save_progress(self._store, reading.task.paused())

    def _fail(self, reading: _Reading, why: str) -> None:
        logger.error("dump %s of %s failed: %s", reading.task.id, reading.task.table, why)
        save_progress(self._store, reading.task.failed(why))

    def _read_chunk(self, reading: _Reading) -> None:
        slow = throttle(self._store)
        limit = slow.chunk_size or self._settings.chunk_size
        keys, last_requested = self._next_keys(reading, limit)
        retry = Retrying(
            retry=retry_if_exception(lambda e: isinstance(e, SourceError) and e.retryable),
            wait=wait_exponential(multiplier=0.2, max=15), stop=stop_after_delay(self._reconnect_seconds), reraise=True,
        )
        chunk = retry(self._read_once, reading, limit, keys)
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
            chunk.read = self._reader.read(request, _Delivery(self._batches, chunk))
            failpoint("dump.chunk_read")
            self._reader.mark(_READER, chunk.high_value)
            failpoint("dump.high_written")
        except SourceError:
            self._windows.forget(chunk)
            if self._reader:
                self._reader.close()
            self._reader = None
            raise
        return chunk

    def _take_landed(self, reading: _Reading, *, wait: float) -> None:
        """Saves progress for the chunks whose windows have landed; goes back to a chunk that was discarded."""
        try:
            chunk = self._landed.get(timeout=wait) if wait else self._landed.get_nowait()
        except queue.Empty:
            return
        if not reading.under_way or chunk is not reading.under_way[0]:
            return  # read after a chunk that was discarded: its rows count, but it is read once more
        reading.under_way.popleft()
        if chunk.discarded:
            logger.warning("chunk %d of %s was discarded: %s", chunk.number, chunk.table, chunk.discarded)
            reading.under_way.clear()
            reading.after, reading.number, reading.exhausted = chunk.after, chunk.number, False
            reading.discards += 1
            return
        reading.discards = 0
        failpoint("dump.before_progress")
        assert chunk.read is not None
        reading.task = save_progress(self._store, reading.task.landed(chunk.read.rows, chunk.end))
        failpoint("dump.progress_saved")


class _Delivery:
    """Hands a chunk's rows to the batch as they come, numbered through the chunk."""

    def __init__(self, batches: BatchBuilder, chunk: OpenChunk) -> None:
        self._batches, self._chunk = batches, chunk
        self._rows = 0

    def __call__(self, payload: pa.BinaryArray, schema: TableSchema) -> None:
        self._batches.add_chunk(self._chunk, schema, self._rows, payload)
        self._rows += len(payload)
