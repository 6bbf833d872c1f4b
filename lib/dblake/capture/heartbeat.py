"""Heartbeats: capture updates its own row of the watermark table at an interval.

An update advances the log of an idle database, so that the database can release what has landed. A heartbeat's value
that appears in the log proves that everything written before it has appeared as well.
"""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from dblake.core.errors import SourceError
from dblake.core.source import HEARTBEAT_ROW, ChunkReader, Source

logger = logging.getLogger(__name__)


class Heartbeat:
    """Heartbeats on their own connection, which is opened at the first one and reopened after it breaks."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self._source, self._interval = source, interval_seconds
        self._connection: ChunkReader | None = None
        self._next = 0.0
        self._is_failing = False

    @property
    def is_due(self) -> bool:
        """True once the interval since the last heartbeat has passed."""
        return time.monotonic() >= self._next

    @property
    def backing_off(self) -> bool:
        """True after a heartbeat that failed, until the next one is due."""
        return self._is_failing and not self.is_due

    def write(self) -> str | None:
        """Update the row; return the value to expect in the log, or None if the server is unreachable.

        Raises SourceError if the error is not retryable.
        """
        self._next = time.monotonic() + self._interval
        value = str(uuid4())
        try:
            if self._connection is None:
                self._connection = self._source.open_reader()
            self._connection.mark(HEARTBEAT_ROW, value)
        except SourceError as error:
            if not error.retryable:
                raise
            logger.warning("heartbeat failed: %s", error.what)
            self.close()
            self._is_failing = True
            return None
        self._is_failing = False
        return value

    def close(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None
