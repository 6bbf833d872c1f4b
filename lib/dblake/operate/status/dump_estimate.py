"""The rate and the remaining time of a dump, for ``status``.

Place: beside ``report``, from a dump's progress and the database's estimate of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def estimate_dump(dump: Mapping[str, Any], rows_expected: int | None) -> dict[str, Any]:
    """Return a dump's rate and remaining time, None where unknown: rows_per_second, rows_expected, seconds_left.

    ``rows_expected`` estimates the table's rows; None for a dump of given keys.
    """
    started, finished = (_parse_time(dump[name]) for name in ("started_at", "finished_at"))
    seconds = ((finished or datetime.now(UTC)) - started).total_seconds() if started else 0.0
    rate = round(dump["rows"] / seconds, 1) if seconds > 0 and dump["rows"] else None
    seconds_left = None
    if dump["state"] == "running" and rate and rows_expected is not None:
        seconds_left = round(max(rows_expected - dump["rows"], 0) / rate, 1)
    return {"rows_per_second": rate, "rows_expected": rows_expected, "seconds_left": seconds_left}


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
