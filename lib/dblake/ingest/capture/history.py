"""Proves that a server's log continues what was captured, by the chain of heartbeats (``core.source.heartbeats``).

A server that was restored to an earlier state is the same server to every number that identifies it, and its positions
come again with other contents. But its heartbeat row has an older value than the one that was captured last, and so the
next heartbeat in its log names another predecessor. Guarantee: nothing of a log that was opened is passed on before one
of three holds. The row has the captured value, or a heartbeat in the log names it, or the log, read again, has it in
its place. Later heartbeats are compared as the log is read.

What is not detected: a server that went back to a state after the last heartbeat that was captured, and has written
past the captured position since.
"""

from __future__ import annotations

import logging
from contextlib import closing

from dblake.base.core.errors import ACCEPT_GAP, LogWentBack
from dblake.base.core.source import HEARTBEAT_ROW, LogPiece, LogStream
from dblake.base.core.source.heartbeats import is_unchained, names_as_predecessor
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.heartbeat import Heartbeat

_READ_SECONDS = 0.05

logger = logging.getLogger(__name__)


class CaptureStopped(Exception):
    """Capture is stopped before the server's history is proved; nothing of the log was passed on."""


class History:
    """The value of the heartbeat row where the log has been read to.

    ``heartbeat`` is empty where that is not known: at the start of an incarnation, or after an earlier version. Then
    the chain is compared from the row's value at the opening on: an accepted gap may lie in the log before it.
    """

    def __init__(self, capture: CaptureContext, heartbeat: str) -> None:
        self._capture, self.heartbeat = capture, heartbeat
        self._at_opening = ""

    def follow(self, piece: LogPiece) -> bool:
        """Follow the heartbeats in a piece; return whether it shows any. Raises LogWentBack if one names another."""
        replayed = piece.replayed_heartbeat
        if replayed is not None and is_unchained(self.heartbeat) and replayed != self.heartbeat:
            raise self._build_error()
        values = [mark.value for mark in piece.watermarks if mark.reader == HEARTBEAT_ROW]
        for value in values:
            if not self.heartbeat:
                has_begun = is_unchained(value) or value == self._at_opening
                if has_begun or names_as_predecessor(value, self._at_opening):
                    self.heartbeat = value
            elif names_as_predecessor(value, self.heartbeat) is False:
                raise self._build_error()
            else:
                self.heartbeat = value
        return bool(values) or replayed is not None

    def _build_error(self) -> LogWentBack:
        return LogWentBack(
            f"source {self._capture.source.name}: the server's log does not contain the heartbeat that was captured"
            " last: the log went back, as after a snapshot of its storage was restored, or the watermark table was"
            " recreated, a gap",
            next_step=ACCEPT_GAP,
        )

    def is_current(self) -> bool:
        """Return True if the heartbeat row has the captured value, or there is none to compare with."""
        with closing(self._capture.source.open_reader()) as reader:
            self._at_opening = reader.read_mark(HEARTBEAT_ROW)
        return not self.heartbeat or self._at_opening == self.heartbeat

    def require_continued(self, stream: LogStream) -> None:
        """Read the log up to its first heartbeat, and require that it follows the captured one; pass nothing on.

        Writes a heartbeat, so that there is one. That destroys no evidence, as it names the one before it. Raises
        LogWentBack if the log is another one, Stopped and Fenced.
        """
        capture, captured = self._capture, self.heartbeat
        logger.info("source %s: comparing the log with what was captured", capture.source.name)
        beats = Heartbeat(capture.source, capture.settings.heartbeat_seconds)
        try:
            while not capture.stop.is_set():
                capture.require_lease()
                if beats.is_due:
                    beats.write()
                settings = capture.settings
                piece = stream.read(max_bytes=settings.max_bytes, max_rows=settings.max_rows, seconds=_READ_SECONDS)
                if piece and self.follow(piece):
                    return
        finally:
            beats.close()
            self.heartbeat = captured
        raise CaptureStopped
