"""What the running capture reports of itself: in its log, and as a document for ``status``.

Place: beside ``loop``. One line at the start (tables, place in the log), one when the log is read to its end, a summary
a minute. The document is written with each of them. Guarantee: a store that fails costs the document, not capture.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from dblake.base.core.errors import DblakeError
from dblake.base.core.processes import is_alive
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.dump_task import now_text
from dblake.ingest.capture.progress import ProgressStore

_ACTIVITY = "capture"
SUMMARY_SECONDS = 60.0
_SILENT_SECONDS = 3 * SUMMARY_SECONDS
"""A capture that has written nothing for so long does not run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Activity:
    """One run of capture: the process and its host, since when it runs, and when it last wrote this (UTC, ISO 8601).

    ``ended_at`` is None until it ends in order. ``has_caught_up`` if it has read the log to its end since it started.
    """

    host: str
    process: int
    since: str
    seen_at: str
    tables: int
    position: str
    has_caught_up: bool = False
    ended_at: str | None = None

    def is_running(self) -> bool:
        """Return True unless the run has ended, its process is gone, or it has written nothing for minutes."""
        return self.ended_at is None and is_alive(self.host, self.process, self.seen_at, _SILENT_SECONDS)


def read_activity(store: ProgressStore) -> Activity | None:
    """Return what the newest run of capture wrote; None before the first. Raises ConfigError for another document."""
    document = store.read(_ACTIVITY)
    with document_errors(_ACTIVITY, "delete the document; capture writes it again"):
        return Activity(**document) if document else None


class ActivityLog:
    """Reports one run of capture. ``position`` is where the log is resumed."""

    def __init__(self, store: ProgressStore, source: str, tables: int, position: str, lease_epoch: int) -> None:
        now = now_text()
        self._store, self._source = store, source
        self._activity = Activity(socket.gethostname(), os.getpid(), now, now, tables, position)
        self._began = self._summed_at = time.monotonic()
        self._rows = 0
        logger.info("capture of %s starts: %d tables, log from %s, lease epoch %d", source, tables, position,
                    lease_epoch)
        self._write()

    def on_caught_up(self, rows: int) -> None:
        """Report, once, that the log was read to its end."""
        if not self._activity.has_caught_up:
            self._activity = replace(self._activity, has_caught_up=True)
            logger.info("capture of %s has caught up with the log after %.1f s: %d rows landed", self._source,
                        time.monotonic() - self._began, rows)
            self._write()

    def report(self, rows: int, position: str, tables: int, lag_seconds: float | None) -> None:
        """Report, once a minute, the rows landed since the last time and up to where.

        ``lag_seconds`` is the age of the newest heartbeat that has landed.
        """
        seconds = time.monotonic() - self._summed_at
        if seconds < SUMMARY_SECONDS:
            return
        new, self._rows = rows - self._rows, rows
        lag = "" if lag_seconds is None else f", {lag_seconds:.1f} s behind"
        logger.info("capture of %s: %d rows in %.0f s (%.0f a second), up to %s%s", self._source, new, seconds,
                    new / seconds, position, lag)
        self._summed_at = time.monotonic()
        self._activity = replace(self._activity, position=position, tables=tables)
        self._write()

    def end(self, position: str) -> None:
        """Record that the run ends."""
        self._activity = replace(self._activity, position=position, ended_at=now_text())
        self._write()

    def _write(self) -> None:
        self._activity = replace(self._activity, seen_at=now_text())
        with suppress(DblakeError):
            self._store.write(_ACTIVITY, asdict(self._activity))
