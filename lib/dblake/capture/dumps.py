"""Dumps beside the log: one thread that reads the queued tables chunk by chunk.

For each chunk: low watermark, the rows, high watermark (DBLog, algorithm 1, steps 2 to 4), without pausing the log.
The next chunk is read before the last one's high watermark has landed, a few at a time; progress is saved only for
chunks whose window has landed, in order, so a crash costs the chunks under way and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from dblake.capture.batch import BatchBuilder, Closed
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import DumpTask, pending, save_progress, throttle
from dblake.capture.settings import DumpSettings
from dblake.capture.windows import OpenChunk, Windows
from dblake.core.errors import DblakeError, UnsupportedByName
from dblake.core.failpoints import failpoint
from dblake.core.source import ChunkReader, ChunkRequest, Source

_AHEAD = 4
"""Chunks read whose windows have not landed yet."""
_LOOK_SECONDS = 0.5
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
        self._idle = threading.Event()
        self._reader: ChunkReader | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dumps", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Starts no more chunks; those under way may still land."""
        self._stop.set()

    def close(self) -> None:
        """Ends the thread."""
        self.stop()
        self._batches.close()
        self._thread.join(timeout=30)
        if self._reader:
            self._reader.close()

    @property
    def idle(self) -> bool:
        """True if nothing is queued or under way, as far as was seen when last looked."""
        return self._idle.is_set()

    def landed(self, chunk: OpenChunk) -> None:
        """Tells that a chunk's window has landed."""
        self._landed.put(chunk)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                task = next(iter(pending(self._store)), None)
                if task is None:
                    self._idle.set()
                    self._stop.wait(_LOOK_SECONDS)
                else:
                    self._idle.clear()
                    self._dump(task)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - the log loop raises it in its own thread
            self.error = error

    def _dump(self, task: DumpTask) -> None:
        """One table until it is done, paused or cancelled, or capture stops."""
        logger.info("dump %s of %s starts after chunk %d", task.id, task.table, task.chunks)
        task = save_progress(self._store, task.running())
        reading = _Reading(task, after=task.last_key, number=task.chunks + 1)
        while True:
            self._take_landed(reading, wait=self._must_wait(reading))
            if reading.exhausted and not reading.under_way:
                reading.task = save_progress(self._store, reading.task.done())
                logger.info("dump %s of %s is done: %d rows", task.id, task.table, reading.task.rows)
                return
            if self._must_wait(reading):
                if self._stop.is_set() and not self._thread_may_wait():
                    return
                continue
            if self._stop.is_set() or not self._still_wanted(reading):
                if not reading.under_way:
                    return
                reading.exhausted = False
                self._take_landed(reading, wait=True)
                if self._stop.is_set():
                    return
                continue
            try:
                self._read_chunk(reading)
            except UnsupportedByName as error:
                logger.error("dump %s of %s failed: %s", task.id, task.table, error)
                save_progress(self._store, reading.task.failed(error.what))
                return
