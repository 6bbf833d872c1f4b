"""Scans of the source's catalog and prerequisites, on a thread of their own.

Guarantee: the log loop never waits for a scan, however long the database or a lock makes it wait. What a scan means is
left to ``lifecycle`` and ``stale_detector``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from dblake.core.errors import PrerequisitesNotMet, SourceError
from dblake.core.source import Source, TableFingerprint, UnfitTable

_JOIN_SECONDS = 1.0
_MAX_NAMED = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogScan:
    """What the catalog holds: the captured ``tables``, those that are ``unfit``, the others' fingerprints.

    ``read_at`` is when the scan began, by the monotonic clock.
    """

    read_at: float
    tables: Set[str]
    unfit: Mapping[str, UnfitTable]
    fingerprints: Sequence[TableFingerprint]


def scan_source(source: Source) -> CatalogScan:
    """Read the catalog. Raises PrerequisitesNotMet if capture of the whole source would miss changes."""
    read_at = time.monotonic()
    tables = {table.table for table in source.tables()}
    return CatalogScan(read_at, tables, source.require(), source.table_fingerprints())


def scan_at_start(source: Source) -> CatalogScan:
    """Scan the catalog. Raises PrerequisitesNotMet also if there are tables and none of them can be captured."""
    scan = scan_source(source)
    if scan.unfit and not scan.fingerprints:
        reasons = "; ".join(f"{table}: {unfit.reason}" for table, unfit in sorted(scan.unfit.items())[:_MAX_NAMED])
        more = f" and {len(scan.unfit) - _MAX_NAMED} more" if len(scan.unfit) > _MAX_NAMED else ""
        raise PrerequisitesNotMet(
            f"source {source.name}: no table can be captured: {reasons}{more}",
            next_step="run preflight, which prints the statement that corrects each",
        )
    return scan


def has_capturable_table(source: Source) -> bool:
    """Return True if capture can start and follow at least one table."""
    try:
        scan_at_start(source)
    except PrerequisitesNotMet:
        return False
    return True


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
