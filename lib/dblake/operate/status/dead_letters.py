"""The dead letters of each output, for ``status``: how many, and when the newest was added.

Place: between the table of ``consume.dead_letters`` and ``status.report``. Reads no row but those of that table, which
has positions only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import instant, query_rows


def count_dead_letters(paths: Paths, recent_seconds: float = 86400.0) -> list[dict[str, Any]]:
    """Return one entry per output that has dead letters, by name: ``output``, ``count``, ``newest_at`` and ``recent``.

    ``recent`` is the number of those of the last ``recent_seconds``.
    """
    since = instant(datetime.now(UTC) - timedelta(seconds=recent_seconds))
    rows = query_rows(
        paths.dead_letters,
        f"SELECT output, count(*) AS count, max(at) AS newest_at, count(*) FILTER (WHERE at >= {since}) AS recent "
        "FROM t GROUP BY output ORDER BY output",
    )
    return [
        {"output": row["output"], "count": row["count"],
         "newest_at": row["newest_at"].astimezone(UTC).isoformat(timespec="seconds"), "recent": row["recent"]}
        for row in rows
    ]
