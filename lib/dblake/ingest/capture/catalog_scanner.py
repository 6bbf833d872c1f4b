"""Scans of the catalog on a thread of their own, while the log is followed.

Place: between the capture loop, which requests scans and takes their results, and ``catalog_scan``. Guarantee: the log
loop never waits for a scan, however long the database or a lock makes it wait.
"""

from __future__ import annotations

import logging
import threading

from dblake.base.core.errors import SourceError
from dblake.base.core.source import Source
from dblake.ingest.capture.catalog_scan import CatalogScan, scan_source

_JOIN_SECONDS = 1.0

logger = logging.getLogger(__name__)


class CatalogScanner:
    """Scans on request, on a thread that ends with ``close`` or with the process."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._is_requested = self._is_closed = False
        self._scan: CatalogScan | None = None
        self._error: SourceError | None = None
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Scan soon, without waiting for it; a request during a scan is served after it."""
        with self._changed:
            self._is_requested = True
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="catalog", daemon=True)
            self._thread.start()

    def take(self) -> CatalogScan | None:
        """Return the newest scan, once. Raises the SourceError of a scan if a retry cannot help."""
        if self._error:
            raise self._error
        scan, self._scan = self._scan, None
        return scan

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while self._await_request():
            try:
                self._scan = scan_source(self._source)
            except SourceError as error:
                if not error.retryable:
                    self._error = error
                    return
                logger.warning("catalog not scanned: %s", error.what)

    def _await_request(self) -> bool:
        with self._changed:
            while not (self._is_requested or self._is_closed):
                self._changed.wait()
            self._is_requested = False
            return not self._is_closed
