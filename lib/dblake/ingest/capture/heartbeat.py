"""Heartbeats: capture updates its own row of the watermark table at an interval.

An update advances the log of an idle database, so that the database can release what has landed. A heartbeat
that appears in the log proves that everything written before it has appeared as well. Guarantee: nothing here blocks
the log loop: a thread of its own writes, however long the database, or a lock on the row, makes it wait.
"""

from __future__ import annotations

import logging
import threading
import time

from dblake.base.core.errors import SourceError
from dblake.base.core.source import ChunkReader, Source
from dblake.base.core.source.heartbeats import new_heartbeat_name

_JOIN_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Heartbeat:
    """Heartbeats on their own thread and connection, which is opened at the first one and reopened after it breaks."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self._source, self._interval = source, interval_seconds
        self._next = 0.0
        self._changed = threading.Condition()
        self._waiting: str | None = None
        self._last: str | None = None
        self._failed: str | None = None
        self._error: SourceError | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_due(self) -> bool:
        """True once the interval since the last heartbeat was requested has passed."""
        return time.monotonic() >= self._next

    @property
    def backing_off(self) -> bool:
        """True after a heartbeat that failed, until the next one is due."""
        return self._failed is not None and self._failed == self._last and not self.is_due

    def write(self) -> str:
        """Request an update of the row and return the name to expect in the log, without waiting for it.

        A request that is not being written yet is repeated, not replaced. Raises the SourceError of an earlier
        heartbeat if it is not retryable.
        """
        self._next = time.monotonic() + self._interval
        with self._changed:
            if self._error:
                raise self._error
            if self._waiting is None:
                self._waiting = self._last = new_heartbeat_name()
                self._changed.notify_all()
            name = self._waiting
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()
        return name

    def has_failed(self, name: str) -> bool:
        """Return True if the heartbeat of this name could not be written; the server may still carry it out."""
        return name == self._failed

    def close(self) -> None:
        """End the thread and its connection; a thread that waits for the database ends with the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        connection: ChunkReader | None = None
        while (name := self._take()) is not None:
            try:
                connection = connection or self._source.open_reader()
                connection.beat(name)
            except SourceError as error:
                logger.warning("heartbeat failed: %s", error.what)
                if connection:
                    connection.close()
                connection, self._failed = None, name
                if not error.retryable:
                    self._error = error
        if connection:
            connection.close()

    def _take(self) -> str | None:
        """Wait for a requested heartbeat and return its name, None once closed."""
        with self._changed:
            while self._waiting is None and not self._is_closed:
                self._changed.wait()
            name, self._waiting = self._waiting, None
            return None if self._is_closed else name
