"""A source's tables with operations of every minute, made without Spark or a database, for the tests of ``report``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.frontier import FRONTIER
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import Location
from dblake.base.lake.tables import create_table, open_table
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.table_life import LifeState, TableLife, save_life
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.operate.verification.ledger import ChunkResult, Round, append_results
from dblake.serve.consume.dead_letters import DeadLetter, append_dead_letters
from dblake.transform.events.files import EVENT_COLUMNS
from tests.support.plain_lake import PlainLake, date_commit

MINUTE = timedelta(minutes=1)
_OPERATIONS = np.array(["c", "u", "u", "d"])


def events_of(counts: Mapping[str, np.ndarray], end: datetime, *, origin: str = "log", batch: int = 1) -> pa.Table:
    """Return events of EVENT_COLUMNS: so many per table and minute, the last minute ends at ``end``.

    Of four operations of a table one is an insert, two are updates and one is a delete.
    """
    tables, minutes, kinds = [], [], []
    for table, per_minute in counts.items():
        total = int(per_minute.sum())
        tables.append(np.full(total, table, object))
        minutes.append(np.repeat(np.arange(len(per_minute)), per_minute) - len(per_minute))
        kinds.append(_OPERATIONS[np.arange(total) % 4])
    minute = np.concatenate(minutes)
    order = np.argsort(minute, kind="stable")
    start = int(end.timestamp() * 1_000_000)
    times = start + minute[order] * 60_000_000 + 30_000_000
    rows = len(order)
    columns = {
        "incarnation": np.ones(rows, np.int64), "lsn": np.arange(1, rows + 1, dtype=np.int64),
        "seq": np.zeros(rows, np.int64), "table": np.concatenate(tables)[order], "op": np.concatenate(kinds)[order],
        "committed_at": pa.array(times, pa.timestamp("us", tz="UTC")), "last_in_txn": np.ones(rows, bool),
        "origin": np.full(rows, origin, object), "batch": np.full(rows, batch, np.int64),
    }
    return pa.table([
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in EVENT_COLUMNS
    ], schema=EVENT_COLUMNS)


def land(
    paths: Paths, batch: int, committed_at: datetime, landed_at: datetime, *later: datetime, kind: str = "row"
) -> None:
    """Land a change, or heartbeat, that committed at a time, and changes that committed ``later``, as one batch."""
    rows = [
        {"batch": batch, "lease_epoch": 1, "incarnation": 1, "lsn": 10 * batch, "seq": 2 * number, "kind": kind,
         "committed_at": time, "last_in_txn": True, "payload": b"x", "landed_at": landed_at}
        for number, time in enumerate((committed_at, *later))
    ]
    reached = Reached(batch, 1, ServerIdentity("server", "log"), ResumePoint(1, "0/0"))
    Landing(paths.landing, paths.source).commit(pa.Table.from_pylist(rows, schema=LANDING), reached)


def reach_state(paths: Paths, batch: int, at: datetime, tables: Iterable[str]) -> None:
    """Append the frontier's row of a step of state that ended at a time."""
    row = {"at": at, "batch": batch, "incarnation": 1, "lsn": 10 * batch, "seq": 0,
           "versions": [(table, batch) for table in tables], "behind": []}
    create_table(paths.frontier, FRONTIER)
    write_deltalake(open_table(paths.frontier), pa.Table.from_pylist([row], schema=FRONTIER), mode="append")


def build_busy_lake(
    root: Path | Location, store: FileProgress, counts: Mapping[str, np.ndarray], end: datetime, *, batches: int = 30,
    verified: int = 1000,
) -> PlainLake:
    """Make a source ``shop``: events up to ``end``, batches a minute apart, steps of events and state, a dead letter.

    Every third of the first ``verified`` tables was verified.
    """
    lake = PlainLake(root)
    for batch in range(1, batches + 1):
        at = end - (batches - batch) * MINUTE
        land(lake.paths, batch, at - timedelta(seconds=2), at)
        if batch == batches:
            lake.append(events_of(counts, end), batches)
            date_commit(lake.paths.events, at + timedelta(seconds=20))
        elif batch % 5 == 0:
            lake.reach_events(batch, at + timedelta(seconds=20))
        if batch % 5 == 0:
            reach_state(lake.paths, batch, at + timedelta(seconds=40), counts)
    for number, table in enumerate(counts):
        life = TableLife(table, LifeState.FOLLOWED, end.isoformat(), "1/1", is_complete=True)
        save_life(store, life)
        if number % 3 == 0 and number < verified:
            compared = ChunkResult(Round(f"v{number}"), table, f"v{number}/1", Position(1, 5), number + 1,
                                   rows_compared=900 + number, rows_skipped=number, closing=True)
            append_results(lake.paths, [compared], number + 1)
    append_dead_letters(lake.paths, "search", [DeadLetter(next(iter(counts)), Position(1, 2, 0), "too long")])
    return lake


def full_minute(now: datetime) -> datetime:
    """Return the minute that a time is in."""
    return now.astimezone(UTC).replace(second=0, microsecond=0)
