"""What the newest run of ``check`` found, for ``status``: no JVM, and of the results only that run's rows."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from dblake.lake.layout import Paths
from dblake.lake.log import query_rows


def newest_check(paths: Paths) -> dict[str, Any] | None:
    """When it ran, how many expectations it looked at, and those that do not hold; None if nothing was checked yet."""
    rows = query_rows(
        paths.check_results,
        "SELECT checked_at, suite, \"table\", expectation, \"column\", success, unexpected, fault FROM t "
        "WHERE run_id = (SELECT run_id FROM t ORDER BY checked_at DESC LIMIT 1) ORDER BY suite, \"table\", expectation",
    )
    if not rows:
        return None
    told = ("suite", "table", "expectation", "column", "unexpected", "fault")
    return {
        "checked_at": rows[0]["checked_at"].astimezone(UTC).isoformat(timespec="seconds"),
        "expectations": len(rows),
        "failed": [{name: row[name] for name in told} for row in rows if not row["success"]],
    }
