"""Gather what the page shows: the document of ``status``, and from the tables operations, lag and dumped rows.

Place: between ``jobs.report`` and ``page``. Reads tables only, without a JVM. What only the database and the progress
store know is in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import instant, query_rows
from dblake.operate.report.episodes import DROP, Episode, find_episodes
from dblake.operate.report.lag import LagHistory, read_lag_history
from dblake.operate.report.operations import Operations, count_operations
from dblake.operate.report.period import Period


@dataclass(frozen=True)
class Limits:
    """What counts as late, and as too old a verification, in seconds; None: no age is."""

    late_seconds: float
    max_verification_age_seconds: float | None


@dataclass(frozen=True)
class Report:
    """Everything on the page. Buckets of ``episodes`` are numbered from the first shown one.

    ``episodes`` has each table's episodes, by its row in ``operations``; ``overall`` has the episodes of all tables
    together. Shown buckets from ``known_until`` on are incomplete. ``dumped`` are rows that dumps read, per shown
    bucket.
    """

    made_at: datetime
    document: Mapping[str, Any]
    limits: Limits
    operations: Operations
    episodes: Mapping[int, list[Episode]]
    overall: list[Episode]
    known_until: int
    lag: LagHistory
    dumped: np.ndarray

    @property
    def period(self) -> Period:
        """The period that all plots show."""
        return self.operations.period


def build_report(
    paths: Paths, document: Mapping[str, Any], since: timedelta, now: datetime, limits: Limits
) -> Report:
    """Return the report of the newest ``since``; ``document`` is what ``status.report.build_status`` returned."""
    operations = count_operations(paths, since, now, len(document["captured"]))
    period = operations.period
    until = _known_until(document, operations, now)
    first = min(operations.complete_from, until)
    by_table: dict[int, list[Episode]] = {}
    for episode in _find(operations.totals, period, first, until):
        by_table.setdefault(episode.series, []).append(episode)
    return Report(
        now, document, limits, operations, by_table,
        _find(operations.totals.sum(axis=0, keepdims=True), period, first, until),
        until - period.past, read_lag_history(paths, period), _read_dumped(paths, period),
    )


def rank_tables(report: Report) -> list[int]:
    """Return the rows of the tables that changed in the period, or have an episode in it, as the page shows them.

    Tables with a drop that lasts come first, then tables with other episodes by size, then the others by activity.
    """
    totals = report.operations.shown.sum(axis=1)
    changed = sorted({*np.flatnonzero(totals).tolist(), *report.episodes, *report.operations.truncates})

    def rank(row: int) -> tuple[bool, float, float, str]:
        episodes = report.episodes.get(row, [])
        return (not any(episode.kind == DROP and episode.is_open for episode in episodes),
                -max((episode.deviation for episode in episodes), default=0.0), -float(totals[row]),
                report.operations.tables[row])

    return sorted(changed, key=rank)


def _find(totals: np.ndarray, period: Period, first: int, until: int) -> list[Episode]:
    """Return the shown episodes, judged by the buckets from ``first`` on, with shown buckets' numbers."""
    episodes = find_episodes(totals[:, first:], period.past - first, until - first)
    moved = period.past - first
    return [replace(episode, begin=max(episode.begin - moved, 0), end=episode.end - moved) for episode in episodes]


def _known_until(document: Mapping[str, Any], operations: Operations, now: datetime) -> int:
    """Return the bucket of the newest commit that events hold: from it on they do not hold all changes yet."""
    period, lag = operations.period, document["stages"]["events"]["lag_seconds"]
    if lag is not None:
        return max(min(period.bucket_of(now - timedelta(seconds=lag)), period.buckets), 0)
    counted = np.flatnonzero(operations.totals.any(axis=0))
    return int(counted[-1]) if len(counted) else 0


def _read_dumped(paths: Paths, period: Period) -> np.ndarray:
    """Return the rows that closed windows of dumps read, per shown bucket."""
    seconds = period.width.total_seconds()
    begin = period.start.timestamp()
    rows = query_rows(
        paths.windows,
        f"SELECT CAST(floor((date_part('epoch', closed_at) - {begin}) / {seconds}) AS BIGINT) AS bucket, "
        f"sum(rows_read) AS n FROM t WHERE status = 'closed' AND closed_at >= {instant(period.start)} "
        f"AND closed_at < {instant(period.end)} GROUP BY 1",
    )
    dumped = np.zeros(period.shown, np.int64)
    for row in rows:
        if row["n"] and 0 <= row["bucket"] < period.shown:
            dumped[row["bucket"]] += row["n"]
    return dumped
