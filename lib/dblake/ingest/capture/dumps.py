"""Dumps beside the log: threads that read the queued tables, each with its own chunk reader.

Which chunk is next and what has landed is left to ``schedule``, reading a chunk to ``dump_reader``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from dblake.ingest.capture.batch import BatchBuilder, Closed
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dump_reader import DumpReader, ReaderContext
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.capture.schedule import Schedule
from dblake.ingest.capture.windows import Windows

_POLL_SECONDS = 0.25
_JOIN_SECONDS = 30.0


class DumpRunner:
    """Reads the dumps queued in the progress store. ``error`` is what ended a thread, for the log loop to raise."""

    def __init__(
        self, capture: CaptureContext, batches: BatchBuilder, windows: Windows,
        suspended: Callable[[], Mapping[str, str]],
    ) -> None:
        """``suspended`` returns the tables of which no chunk is read, with the reasons."""
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._batches = batches
        self._schedule = Schedule(capture.store)
        self.error: BaseException | None = None
        self.is_paused = False
        """While it is set no chunk is started: the log, which closes their windows, is not read."""
        context = ReaderContext(
            capture, self._schedule, batches, windows, suspended, self._stop, self._closed
        )
        numbers = range(1, capture.dump_settings.readers + 1)
        self._readers = [DumpReader(number, context) for number in numbers]
        self._threads = [
            threading.Thread(target=self._run, args=(reader,), name=f"dumps-{number}", daemon=True)
            for number, reader in zip(numbers, self._readers, strict=True)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Start no more chunks. The threads end once the pending chunks have landed."""
        self._stop.set()

    def close(self) -> None:
        """End the threads; the next capture reads the pending chunks again."""
        self._stop.set()
        self._closed.set()
        self._batches.close()
        for thread in self._threads:
            thread.join(timeout=_JOIN_SECONDS)
        for reader in self._readers:
            reader.close()

    @property
    def is_busy(self) -> bool:
        """True while chunks are pending or may still be started."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def is_idle(self) -> bool:
        """True if no dump is queued or running, as of the last time a reader read the queue."""
        return self._schedule.is_idle

    @property
    def is_reading(self) -> bool:
        """True while a reader may add rows at any moment."""
        return self._schedule.is_reading

    def on_dump_queued(self) -> None:
        """Reread the queue at once."""
        self._schedule.on_dump_queued()

    def on_landed(self, chunk: OpenChunk) -> None:
        """Record that a chunk's window has landed. Never blocks."""
        self._schedule.on_landed(chunk)

    def _run(self, reader: DumpReader) -> None:
        try:
            while not self._closed.is_set():
                stopping = self._stop.is_set()
                part = self._schedule.next_range(stopping=stopping, is_paused=self.is_paused)
                if part is not None:
                    reader.advance(part)
                elif stopping and self._schedule.is_finished():
                    return
                else:
                    self._schedule.wait(_POLL_SECONDS)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - the log loop raises it in its own thread
            self.error = error
