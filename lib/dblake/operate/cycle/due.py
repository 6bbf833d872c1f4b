"""When ``check`` and ``maintain`` are due in a run: by the time since the newest one, which their tables record.

Place: before ``run``. Guarantee: jobs that are run on their own, or by another process, count too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dblake.base.lake.layout import Paths
from dblake.operate.maintenance.run import last_maintained
from dblake.operate.quality.pending import has_unchecked_data, read_latest_check


def is_check_due(paths: Paths, every_seconds: float | None, *, has_user_suites: bool, retry: bool) -> bool:
    """Return True if the newest check is older than the interval, None being never, and there is something to check.

    With ``retry`` a check that failed is due again at once.
    """
    latest = read_latest_check(paths)
    failed = latest is not None and not latest.passed
    if not ((retry and failed) or _is_older(latest.began_at if latest else None, every_seconds)):
        return False
    return has_user_suites or has_unchecked_data(paths)


def is_maintenance_due(paths: Paths, every_seconds: float | None) -> bool:
    """Return True if the newest maintenance is older than the interval, and the newest check, if any, has passed.

    Maintenance after a failed check could delete the evidence.
    """
    latest = read_latest_check(paths)
    return (latest is None or latest.passed) and _is_older(last_maintained(paths), every_seconds)


def _is_older(newest: datetime | None, seconds: float | None) -> bool:
    if seconds is None:
        return False
    return newest is None or datetime.now(UTC) - newest >= timedelta(seconds=seconds)
