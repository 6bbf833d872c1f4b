"""The history of lag: how old the oldest change was when it reached landing, events and state, per bucket of time.

Place: between landing, the log of events, the frontier and the page. A batch has three times: when it landed, when a
commit appended it to events, and when state held it, by the frontier. Each is compared with the commit time of the
oldest change in the batch. Guarantee: no payload is read, and a batch whose commit to events is not known has no lag of
events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dblake.base.lake.batch_times import read_batch_times
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import instant, query_arrow
from dblake.base.lake.tables import find_table
from dblake.landing.columns import LANDING, ROW, TRUNCATE
from dblake.operate.report.period import Period
from dblake.operate.report.scan import open_connection, rows_since

_SCHEMA = pa.schema([LANDING.field(name) for name in ("batch", "kind", "committed_at", "landed_at")])
_FRONTIER = pa.schema([("batch", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
_CHANGE_LAG = 'max("at" - oldest_change)'
_STAGES = {"landing": "max(landed_at - oldest)", "events": _CHANGE_LAG, "state": _CHANGE_LAG}


@dataclass(frozen=True)
class LagHistory:
    """The greatest lag in seconds per shown bucket, by stage; NaN where nothing reached the stage."""

    stages: dict[str, np.ndarray]


def read_lag_history(paths: Paths, period: Period) -> LagHistory:
    """Return the lag of landing, events and state in each shown bucket."""
    stages = {name: np.full(period.shown, np.nan) for name in _STAGES}
    landing = find_table(paths.landing)
    if landing is None:
        return LagHistory(stages)
    with open_connection() as connection:
        rows = rows_since(connection, landing, paths.landing, _SCHEMA, "landed_at", period.start)
        changes = ", ".join(f"'{kind}'" for kind in (ROW, TRUNCATE))
        connection.execute(
            "CREATE TEMP TABLE landed AS SELECT batch, max(landed_at) AS landed_at, min(committed_at) AS oldest, "
            f"min(committed_at) FILTER (kind IN ({changes})) AS oldest_change FROM {rows} "
            "WHERE landed_at >= $1 AND committed_at IS NOT NULL GROUP BY batch",
            [period.start],
        )
        connection.register("appended", read_batch_times(paths.events, period.start))
        connection.register("reached", _read_steps(paths, period))
        steps = {
            "landing": ("landed", "landed_at"),
            # Earlier batches may have arrived with a commit that is not known.
            "events": (
                "landed ASOF JOIN appended ON landed.batch <= appended.batch WHERE landed.batch >= first", '"at"',
            ),
            "state": ("landed ASOF JOIN reached ON landed.batch <= reached.batch", '"at"'),
        }
        for name, (source, time) in steps.items():
            bucket, lag = period.sql(time, period.start), _STAGES[name]
            lags = connection.sql(
                f"SELECT bucket, epoch(lag) AS seconds FROM (SELECT {bucket} AS bucket, {lag} AS lag FROM {source} "
                f"GROUP BY bucket) WHERE lag IS NOT NULL AND bucket >= 0 AND bucket < {period.shown}"
            ).to_arrow_table()
            stages[name][lags["bucket"].to_numpy()] = np.maximum(lags["seconds"].to_numpy(), 0)
    return LagHistory(stages)


def _read_steps(paths: Paths, period: Period) -> pa.Table:
    """Return the batches that state has reached, each with the time when it first had."""
    table = find_table(paths.frontier)
    if table is None:
        return _FRONTIER.empty_table()
    return query_arrow(
        table, f"SELECT batch, min(at) AS at FROM t WHERE at >= {instant(period.start)} GROUP BY batch"
    ).cast(_FRONTIER)
