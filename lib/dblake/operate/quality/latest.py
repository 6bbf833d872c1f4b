"""Read the newest run of ``check`` for ``status``, without a JVM. Only that run's rows are read."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows

_FAILURE_COLUMNS = ("suite", "table", "expectation", "column", "unexpected", "fault")


def read_newest_check(paths: Paths) -> dict[str, Any] | None:
    """Return the newest run's time, its number of expectations, and the failed ones; None before the first run."""
    rows = query_rows(
        paths.check_results,
        "SELECT checked_at, suite, \"table\", expectation, \"column\", success, unexpected, fault FROM t "
        "WHERE run_id = (SELECT run_id FROM t ORDER BY checked_at DESC LIMIT 1) ORDER BY suite, \"table\", expectation",
    )
    if not rows:
        return None
    return {
        "checked_at": rows[0]["checked_at"].astimezone(UTC).isoformat(timespec="seconds"),
        "expectations": len(rows),
        "failed": [{name: row[name] for name in _FAILURE_COLUMNS} for row in rows if not row["success"]],
    }
