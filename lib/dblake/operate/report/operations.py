"""Count the operations of each table per bucket of time, by the commit times of the events.

Place: between the events table and the page. Rows that a dump read are no operations. Guarantee: only the events' table
names, operations and commit times are read, never an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.tables import find_table
from dblake.operate.report.period import Period, choose_period
from dblake.operate.report.scan import first_time, last_time, open_connection, rows_since
from dblake.transform.events.files import EVENT_COLUMNS

KINDS = {"inserts": Op.CREATE, "updates": Op.UPDATE, "deletes": Op.DELETE}
_SCHEMA = pa.schema([EVENT_COLUMNS.field(n) for n in ("table", "op", "committed_at", "origin", "batch")])
_AHEAD = timedelta(hours=12)
"""The most that a source's clock may be ahead of ours."""
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Operations:
    """Counts per table and bucket of a period.

    ``totals`` has a row per table and a column per bucket, the past included; each array of ``kinds`` has the columns
    of the shown buckets only. ``truncates`` are the buckets in which tables were truncated, by the table's row.
    ``complete_from`` is the first bucket that maintenance has removed no events from.
    """

    period: Period
    tables: list[str]
    totals: np.ndarray
    kinds: dict[str, np.ndarray]
    truncates: dict[int, list[int]]
    complete_from: int = 0

    @property
    def shown(self) -> np.ndarray:
        """The totals of the shown buckets."""
        return self.totals[:, self.period.past:]


def count_operations(paths: Paths, since: timedelta, now: datetime, tables: int) -> Operations:
    """Count the operations of the newest ``since``, and of the past before it; ``tables`` is about their number."""
    events = find_table(paths.events)
    if events is None:
        return _without_events(choose_period(since, now, None, tables))
    newest = last_time(events, "committed_at")
    if newest is not None and now < newest <= now + _AHEAD:
        now = newest
    period = choose_period(since, now, first_time(events, "committed_at"), tables)
    consolidated = events.transaction_version(Application.consolidation(paths.source)) or 0
    with open_connection() as connection:
        rows = rows_since(connection, events, paths.events, _SCHEMA, "committed_at", period.origin)
        return _aggregate(connection, rows, period, consolidated)


def _without_events(period: Period) -> Operations:
    return Operations(period, [], np.zeros((0, period.buckets), np.int64),
                      {kind: np.zeros((0, period.shown), np.int64) for kind in KINDS}, {})


def _aggregate(connection: duckdb.DuckDBPyConnection, rows: str, period: Period, consolidated: int) -> Operations:
    counts = ", ".join(f"count(*) FILTER (op = '{op}') AS {kind}" for kind, op in KINDS.items())
    bucket = period.sql("committed_at", period.origin)
    connection.execute(
        f'CREATE TEMP TABLE counted AS SELECT "table", {bucket} AS bucket, {counts}, '
        f"count(*) FILTER (op = '{Op.TRUNCATE}') AS truncates, "
        f"max(committed_at) FILTER (batch <= {consolidated}) AS consolidated_at FROM {rows} "
        f"WHERE origin = 'log' AND op IN ('{Op.CREATE}', '{Op.UPDATE}', '{Op.DELETE}', '{Op.TRUNCATE}') "
        "AND committed_at >= $1 AND committed_at < $2 "
        'GROUP BY "table", bucket',
        [period.origin, period.end],
    )
    rows_of_names = connection.sql('SELECT DISTINCT "table" FROM counted ORDER BY ALL').fetchall()
    tables = [name for (name,) in rows_of_names]
    totals = np.zeros((len(tables), period.buckets), np.int64)
    kinds = {kind: np.zeros((len(tables), period.shown), np.int64) for kind in KINDS}
    names = pa.array(tables, pa.string())
    selected = f'SELECT "table", bucket, {", ".join(KINDS)} FROM counted'
    with connection.sql(selected).to_arrow_reader(_BATCH_ROWS) as reader:
        for batch in reader:
            row = pc.index_in(batch.column(0).cast(pa.string()), names).to_numpy(zero_copy_only=False)
            column = batch.column(1).to_numpy(zero_copy_only=False)
            is_shown = column >= period.past
            for number, kind in enumerate(KINDS, start=2):
                values = batch.column(number).to_numpy(zero_copy_only=False)
                totals[row, column] += values
                kinds[kind][row[is_shown], column[is_shown] - period.past] = values[is_shown]
    truncates: dict[int, list[int]] = {}
    rows_of = {name: row for row, name in enumerate(tables)}
    emptied = f'SELECT "table", bucket FROM counted WHERE truncates > 0 AND bucket >= {period.past} ORDER BY bucket'
    for name, number in connection.sql(emptied).fetchall():
        truncates.setdefault(rows_of[name], []).append(number)
    (consolidated_at,) = connection.sql("SELECT max(consolidated_at) FROM counted").fetchall()[0]
    complete_from = 0 if consolidated_at is None else period.bucket_of(consolidated_at) + 1
    return Operations(period, tables, totals, kinds, truncates, complete_from)
