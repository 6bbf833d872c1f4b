"""Scans of the source's catalog and prerequisites.

Place: at the start of capture, and behind ``catalog_scanner`` while it runs. What a scan means is left to ``lifecycle``
and ``stale_detector``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from dblake.base.core.errors import NoTables, PrerequisitesNotMet
from dblake.base.core.source import Source, TableFingerprint, UnfitTable

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
    """Read the catalog, which may have no table any more, or not yet.

    Raises PrerequisitesNotMet if capture of the whole source would miss changes.
    """
    try:
        return _scan(source)
    except NoTables as error:
        logger.warning("%s", error.what)
        return CatalogScan(time.monotonic(), frozenset(), {}, ())


def _scan(source: Source) -> CatalogScan:
    read_at = time.monotonic()
    tables = {table.table for table in source.tables()}
    return CatalogScan(read_at, tables, source.require(), source.table_fingerprints())


def scan_at_start(source: Source) -> CatalogScan:
    """Scan the catalog. Raises PrerequisitesNotMet also if no table exists, or none can be captured."""
    scan = _scan(source)
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
