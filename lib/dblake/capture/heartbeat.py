"""Capture's own sign of life in the source's log: a row that is updated now and then.

It moves a log that nobody else writes to, so that the database can throw its past away, and a value that comes by in
the log shows that all written before it has come by as well.
"""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from dblake.core.errors import SourceError
from dblake.core.source import HEARTBEAT_ROW, ChunkReader, Source

logger = logging.getLogger(__name__)


class Heartbeat:
    """Beats on a connection of its own, which is made when it is first needed, and anew if it is lost."""

    def __init__(self, source: Source, every_seconds: float) -> None:
        self._source, self._every = source, every_seconds
        self._connection: ChunkReader | None = None
        self._next = 0.0
        self._answered = True

    @property
    def due(self) -> bool:
        """True if the last beat was long enough ago."""
        return time.monotonic() >= self._next

    @property
    def rests(self) -> bool:
        """True if the server did not answer the last beat, until the next one is due."""
        return not self._answered and not self.due

    def beat(self) -> str | None:
        """Updates the row; returns the value to look out for, or None if the server did not answer."""
        self._next = time.monotonic() + self._every
        value = str(uuid4())
        try:
            if self._connection is None:
                self._connection = self._source.open_reader()
            self._connection.mark(HEARTBEAT_ROW, value)
        except SourceError as error:
            if not error.retryable:
                raise
            logger.warning("no heartbeat: %s", error.what)
            self.close()
            self._answered = False
            return None
        self._answered = True
        return value

    def close(self) -> None:
        """Ends the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None
