"""The dead letters of each output, for ``status``: how many, and when the newest was added.

Place: between the table of ``consume.dead_letters`` and ``status.report``. Reads no row but those of that table, which
has positions only.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows


def count_dead_letters(paths: Paths) -> list[dict[str, Any]]:
    """Return one entry per output that has dead letters, by name: ``output``, ``count`` and ``newest_at``."""
    rows = query_rows(
        paths.dead_letters,
        "SELECT output, count(*) AS count, max(at) AS newest_at FROM t GROUP BY output ORDER BY output",
    )
    return [
        {"output": row["output"], "count": row["count"],
         "newest_at": row["newest_at"].astimezone(UTC).isoformat(timespec="seconds")}
        for row in rows
    ]
