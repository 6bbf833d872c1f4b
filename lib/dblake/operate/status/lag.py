"""The lag of each stage, read from the tables' Delta logs and file statistics, without a JVM.

Place: between the tables and ``status.report``. Landing's files carry, as statistics, which batches they hold, up to
which position and commit time. So the newest batch of a later stage determines how old its data is and how much is
pending. Only a compacted file that holds batches on both sides of that batch is read itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_arrow
from dblake.base.lake.tables import find_table, has_table, list_files
from dblake.landing.columns import HEARTBEAT, HIGH, LOW, VERIFY_HIGH, VERIFY_LOW
from dblake.transform.state.pending import has_events_after

_MARKS = (HEARTBEAT, LOW, HIGH, VERIFY_LOW, VERIFY_HIGH)
"""Rows of landing that are no changes."""
_STATISTICS = tuple(
    f"{end}.{name}" for end in ("min", "max") for name in ("batch", "incarnation", "lsn", "committed_at")
)


@dataclass(frozen=True, slots=True)
class StageLag:
    """The lag of a stage: it holds everything up to ``position``, which was committed ``lag_seconds`` ago.

    ``lag_bytes`` and ``lag_transactions`` are pending in the stage before it; None if unknown.
    """

    position: str | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    lag_transactions: int | None = None


def read_stages(paths: Paths, frontier_batch: int, log_lag_bytes: int | None) -> dict[str, StageLag]:
    """Return the lag of landing, events and state, in this order.

    ``frontier_batch`` is the landing batch of the newest row of the frontier: without an event after it, state has
    reached as far as events. ``log_lag_bytes`` is the size of the log that has not landed, None if unknown.
    """
    landing = _LandingStatistics(paths.landing)
    events_batch = newest_batch(paths.events, Application.reconcile(paths.source))
    has_events = has_table(paths.events)
    is_folded = frontier_batch > 0 and has_events and not has_events_after(paths, frontier_batch)
    state_batch = max(frontier_batch, events_batch) if is_folded else frontier_batch
    return {
        "landing": landing.build_stage(landing.newest_batch, log_lag_bytes, None),
        "events": landing.build_stage(events_batch, *landing.count_pending(events_batch)),
        "state": landing.build_stage(state_batch, *landing.count_pending(state_batch)),
    }


class _LandingStatistics:
    """The statistics of landing's files; empty without a table or without files."""

    def __init__(self, path: str) -> None:
        self._table = find_table(path)
        self._files: list[dict[str, Any]] = []
        if self._table:
            files = list_files(self._table)
            # A table without files has no statistics columns.
            if set(_STATISTICS) <= set(files.column_names):
                self._files = files.select([*_STATISTICS, "size_bytes"]).to_pylist()
        self.newest_batch = max((file["max.batch"] for file in self._files), default=0)

    def build_stage(self, batch: int, lag_bytes: int | None, lag_transactions: int | None) -> StageLag:
        """Return the stage that has reached ``batch``, with its position and its age in seconds."""
        positions, times = [], []
        for file in self._files:
            if file["min.batch"] > batch:
                continue
            if file["max.batch"] > batch or file["min.incarnation"] != file["max.incarnation"]:
                position, time = self._read_newest(file, batch)
            else:
                position, time = (file["max.incarnation"], file["max.lsn"]), file["max.committed_at"]
            positions += [position] if position[1] is not None else []
            times += [time] if time is not None else []
        if not positions:
            return StageLag(lag_bytes=lag_bytes, lag_transactions=lag_transactions)
        lag = (datetime.now(UTC) - max(times).astimezone(UTC)).total_seconds() if times else None
        incarnation, lsn = max(positions)
        return StageLag(
            f"{incarnation}/{lsn}", None if lag is None else round(max(lag, 0), 1), lag_bytes, lag_transactions
        )

    def count_pending(self, batch: int) -> tuple[int, int]:
        """Return about how many bytes, and exactly how many transactions of captured tables, landed after a batch."""
        size = 0.0
        for file in self._files:
            first, last = file["min.batch"], file["max.batch"]
            size += file["size_bytes"] * max(last - max(batch, first - 1), 0) / (last - first + 1)
        if batch >= self.newest_batch:
            return round(size), 0
        marks = ", ".join(f"'{kind}'" for kind in _MARKS)
        (row,) = self._query(
            f"SELECT count(*) AS n FROM t WHERE batch > {batch} AND last_in_txn AND kind NOT IN ({marks})"
        )
        return round(size), row["n"]

    def _read_newest(self, file: dict[str, Any], batch: int) -> tuple[tuple[int, int | None], datetime | None]:
        """Read the newest (incarnation, LSN) and commit time of a file's batches up to ``batch``."""
        span = f"batch BETWEEN {file['min.batch']} AND {batch}"
        (time,) = self._query(f"SELECT max(committed_at) AS at FROM t WHERE {span}")
        positions = self._query(
            f"SELECT incarnation, max(lsn) AS lsn FROM t WHERE {span} AND lsn IS NOT NULL "
            "GROUP BY incarnation ORDER BY incarnation DESC LIMIT 1"
        )
        return (positions[0]["incarnation"], positions[0]["lsn"]) if positions else (0, None), time["at"]

    def _query(self, statement: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = query_arrow(self._table, statement).to_pylist() if self._table else []
        return rows
