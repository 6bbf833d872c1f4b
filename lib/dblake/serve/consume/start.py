"""Where a subscription without a checkpoint begins: a bootstrap, a position, a commit time, or now.

Place: between ``stream`` and the lake. A point means what it means in ``sql --at`` (``read.resolve``). A position
before the first event is the beginning of the events, as long as none has passed its retention.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from dblake.base.core.errors import ConsumeError, PointOutOfRange, StateNotReady, UsageError
from dblake.base.core.log_places import LSN, lsn_number
from dblake.base.core.names import abbreviated, split_qualified
from dblake.base.core.position import Position
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_rows
from dblake.serve.consume.cursor import BEGINNING, Bootstrap, Cursor
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.redecodes import replaced_since
from dblake.serve.consume.state_rows import NewestState
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.points import Point, parse_point
from dblake.serve.read.resolve import resolve

BOOTSTRAP = "bootstrap"


def begin_at(paths: Paths, events: EventTable, start: str, selection: Selection) -> Cursor:
    """Return the cursor of a subscription that begins at a point, as ``parse_start`` accepts it.

    Raises PointOutOfRange for a point that events do not hold, and what ``begin_bootstrap`` raises.
    """
    point = parse_start(start)
    if point is None:
        return begin_bootstrap(paths, events, selection)
    if point.position is None and point.time is None and point.before is None:
        return _begin_now(events)
    if point.position is not None and not events.consolidated:
        oldest = _oldest(paths)
        if oldest is None or point.position < oldest:
            _require_no_lsn(point.position, oldest, events)
            return _cursor(BEGINNING, 0, events)
    position = resolve(point, EventLog(paths), paths).cut
    batch = _first_batch_after(paths, position)
    if batch is not None and batch <= events.consolidated:
        # A position inside the newest batch with removed events: those after it are not complete.
        raise PointOutOfRange(
            f"source {paths.source}: events after {start} passed their retention", next_step="begin with a bootstrap"
        )
    return _cursor(position, events.batch if batch is None else batch - 1, events)


def parse_start(text: str) -> Point | None:
    """Parse where to begin: None for ``bootstrap``, else a point. Raises UsageError for anything else."""
    return None if text == BOOTSTRAP else parse_point(text)


def begin_bootstrap(paths: Paths, events: EventTable, selection: Selection) -> Cursor:
    """Return the cursor of a bootstrap at state's newest frontier.

    Raises StateNotReady while state has no frontier or is being rebuilt, ConsumeError if a selected table is behind.
    """
    frontier = read_frontier(paths)
    if frontier.position is None:
        raise StateNotReady(
            f"source {paths.source}: a bootstrap reads state, which is empty", next_step="run state, then this again"
        )
    behind = sorted(filter(selection.has_table, frontier.behind))
    if behind:
        raise ConsumeError(
            f"source {paths.source}: state of {abbreviated(behind)} is behind the other tables",
            next_step="run state to see why, or leave these tables out",
        )
    tables = sorted(filter(selection.has_table, frontier.versions))
    if table := find_unbuilt(paths, tables, events.run):
        raise StateNotReady(
            f"table {table}: events were decoded again, and its state is not rebuilt yet",
            next_step="run state, then this again",
        )
    versions = {table: NewestState(paths, table).readable_version(frontier) for table in tables}
    bootstrap = Bootstrap(frontier.position, frontier.batch, versions, id=uuid.uuid4().hex[:16])
    return replace(_cursor(frontier.position, frontier.batch, events), bootstrap=bootstrap)


def find_unbuilt(paths: Paths, tables: Collection[str], run: int) -> str | None:
    """Return a table whose state is not rebuilt after a redecode up to ``run`` replaced its events; None for none."""
    for replaced in replaced_since(paths, 0):
        if replaced.table in tables and replaced.run <= run:
            path = paths.state(*split_qualified(replaced.table))
            if newest_batch(path, Application.redecode(paths.source)) < replaced.run:
                return replaced.table
    return None


def _begin_now(events: EventTable) -> Cursor:
    open_transaction = events.find_open_transaction()
    if open_transaction is not None:
        return _cursor(open_transaction.before, open_transaction.batch - 1, events)
    newest = events.position_of_batch(events.batch)
    return _cursor(newest or BEGINNING, events.batch, events)


def _cursor(position: Position, batch: int, events: EventTable) -> Cursor:
    """Return the cursor at a position that is at or after every event of the batches up to ``batch``."""
    return Cursor(position, batch, events.run, newest=position)


def _require_no_lsn(position: Position, oldest: Position | None, events: EventTable) -> None:
    """Raise UsageError for a position before all events that, read as an LSN, is among them."""
    text, newest = f"{position.incarnation}/{position.lsn}", events.newest
    if position.lsn and oldest and newest and LSN.fullmatch(text) and oldest.lsn <= lsn_number(text) <= newest.lsn:
        raise UsageError(
            f"{text} is a position before all events; as an LSN of PostgreSQL it would be among them",
            next_step=f"write lsn:{text}, or 1/0 for all events",
        )


def _oldest(paths: Paths) -> Position | None:
    rows = query_rows(paths.events, "SELECT incarnation, lsn, seq FROM t ORDER BY incarnation, lsn, seq LIMIT 1")
    return Position(rows[0]["incarnation"], rows[0]["lsn"], rows[0]["seq"]) if rows else None


def _first_batch_after(paths: Paths, position: Position) -> int | None:
    rows = query_rows(paths.events, f"SELECT min(batch) AS batch FROM t WHERE {position.after_sql()}")
    return rows[0]["batch"] if rows else None
