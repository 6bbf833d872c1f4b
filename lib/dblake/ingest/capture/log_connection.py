"""The connection to the source's log: opens it, reads it, and reopens it when it breaks.

Guarantee: rows come only from the server that capture started on, and, with a coordinated lease, only while the lease
is held; a reopened log resumes after the last piece that was returned, and only if it continues what was read.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass

from dblake.base.core.errors import PositionLost, PrerequisitesNotMet, SourceError, UncapturableEvent, Unsupported
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import LogPiece, LogStream, ServerIdentity
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.history import History

START_SECONDS = 10.0
"""How long calls are retried at the start: a server may take some seconds to notice that a previous capture is gone."""
POLL_SECONDS = 0.05
_MAX_FAILURES = 12
"""How often in a row the log may fail right after it was opened: more than half a minute."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where the log starts and on which server: at ``resume``, or at the source's own start if that is None.

    ``heartbeat`` is the value that the heartbeat row had there; empty if it is not known, which proves nothing.
    ``continues`` is set if the server continues the log of another one: the incarnation of that.

    With ``accept_gap``, an event that cannot be captured raises UncapturableEvent after everything before it has
    landed.
    """

    server: ServerIdentity
    resume: ResumePoint | None
    incarnation: int
    accept_gap: bool
    heartbeat: str = ""
    continues: int | None = None


class ServerChanged(Exception):
    """The server at the source's address is not the one of the start point."""


class LogConnection:
    """The log from a start point on. Raises ServerChanged, and Fenced once the lease is lost, when it is opened."""

    def __init__(self, capture: CaptureContext, start: StartPoint) -> None:
        self._capture, self._start_point = capture, start
        self._failures = 0
        self._history = History(capture, start.heartbeat)
        self._stream: LogStream = capture.retrying(START_SECONDS)(self._open, start.resume)
        self.resume = self._stream.start
        """Where the log resumes after the last piece that was returned."""

    @property
    def heartbeat(self) -> str:
        """The value of the heartbeat row at ``resume``, empty if that is not known."""
        return self._history.heartbeat

    def read(self, seconds: float, *, max_bytes: int) -> LogPiece | None:
        """Return the next piece, or None if there is none within ``seconds`` or the log had to be reopened."""
        try:
            piece = self._stream.read(
                max_bytes=max_bytes, max_rows=self._capture.settings.max_rows, seconds=seconds
            )
        except SourceError as error:
            if error.retryable:
                self._reopen(error)
                return None
            self._raise_if_skippable(error)
            raise
        self._failures = 0
        if piece:
            self._history.follow(piece)
            self.resume = piece.reached
        return piece

    def _raise_if_skippable(self, error: SourceError) -> None:
        """Raise UncapturableEvent if the log stops at an event, and ``accept_gap`` skips it."""
        if self._start_point.accept_gap and isinstance(error, (PositionLost, PrerequisitesNotMet, Unsupported)):
            raise UncapturableEvent(error.what, next_step=error.next_step) from error

    def acknowledge(self, point: ResumePoint) -> None:
        """Let the database release the log up to ``point``; reopen the log if the connection is broken."""
        try:
            self._stream.acknowledge(point)
        except SourceError as error:
            if not error.retryable:
                raise
            self._reopen(error)

    def keep_alive(self) -> None:
        """Keep the connection from timing out while the log is not read."""
        # A broken connection is reopened by the next read.
        with suppress(SourceError):
            self._stream.keep_alive()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def _reopen(self, error: SourceError) -> None:
        logger.warning("%s; reconnecting", error.what)
        self._stream.close()
        # A log that opens and then fails each time must not be retried without end, many times a second.
        self._failures += 1
        if self._failures > _MAX_FAILURES:
            raise error
        if self._failures > 1:
            self._capture.stop.wait(min(0.05 * 2**self._failures, 10.0))
        self._stream = self._capture.retrying(self._capture.settings.reconnect_seconds)(self._open, self.resume)

    def _open(self, resume: ResumePoint | None) -> LogStream:
        """Open the log at ``resume``. Raises LogWentBack if the server's history does not contain what was read."""
        stream = self._open_stream(resume)
        if self._history.is_current():
            return stream
        try:
            self._history.require_continued(stream)
        except SourceError as error:
            self._raise_if_skippable(error)
            raise
        finally:
            stream.close()
        return self._capture.retrying(START_SECONDS)(self._open_stream, resume)

    def _open_stream(self, resume: ResumePoint | None) -> LogStream:
        """Open the log, and end a stale reader of it first: a frozen leader's connection outlives its lease."""
        capture, source = self._capture, self._capture.source
        while not capture.lease.held():
            capture.require_lease()
            time.sleep(POLL_SECONDS)
        if capture.lease.coordinated:
            source.terminate_stale_reader()
        try:
            stream = source.open_log(resume, self._start_point.incarnation)
        except PositionLost:
            # Another server has other positions.
            self._require_same_server()
            raise
        try:
            # Verified after opening: if this server answers now, the log was opened on it, or the next read fails.
            self._require_same_server()
        except BaseException:
            stream.close()
            raise
        return stream

    def _require_same_server(self) -> None:
        if not self._capture.source.identity().same_as(self._start_point.server):
            raise ServerChanged
