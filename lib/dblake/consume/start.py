"""Where a subscription without a checkpoint begins: a bootstrap, a position, a commit time, or now.

Place: between ``stream`` and the lake. Guarantee: a point that events do not reach, or no longer hold, is rejected with
the earliest and latest readable one.
"""

from __future__ import annotations

from dblake.consume.cursor import BEGINNING, END, Bootstrap, Cursor
from dblake.consume.event_table import EventTable
from dblake.consume.filters import Selection
from dblake.consume.points import Point
from dblake.consume.redecodes import replaced_since
from dblake.consume.state_rows import readable_version
from dblake.core.errors import ConsumeError, PointUnreadable, StateNotReady
from dblake.core.names import abbreviated, split_qualified
from dblake.core.position import Position
from dblake.lake.frontier import read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import Application, newest_batch, query_rows


def begin_at(paths: Paths, events: EventTable, point: Point, selection: Selection) -> Cursor:
    """Return the cursor of a subscription that begins at a point.

    Raises PointUnreadable for a point out of range, and what ``begin_bootstrap`` raises.
    """
    if point.is_bootstrap:
        return begin_bootstrap(paths, events, selection)
    if point.is_now:
        return _begin_now(events)
    position = point.position
    if point.time is not None:
        microseconds = int(point.time.timestamp() * 1_000_000)
        position = _position_at(paths, f"committed_at <= to_timestamp_micros({microseconds})")
        position = BEGINNING if position is None else Position(position.incarnation, position.lsn, END)
    assert position is not None, "a point is a position, a time, now or a bootstrap"
    newest = events.position_of_batch(events.batch)
    next_batch = _first_batch_after(paths, position)
    is_beyond = newest is not None and (position.incarnation, position.lsn) > (newest.incarnation, newest.lsn)
    if is_beyond or (next_batch is not None and next_batch <= events.consolidated):
        earliest = events.position_of_batch(events.consolidated) if events.consolidated else BEGINNING
        raise PointUnreadable(
            f"source {paths.source}: events cannot be read from {point.text} on; the earliest point is {earliest}, the "
            f"latest {newest}",
            next_step="begin between the two, or with --from bootstrap",
        )
    return Cursor(position, events.batch if next_batch is None else next_batch - 1, events.run)


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
    for replaced in replaced_since(paths, 0):
        if replaced.table in tables and replaced.run <= events.run:
            path = paths.state(*split_qualified(replaced.table))
            if newest_batch(path, Application.redecode(paths.source)) < replaced.run:
                raise StateNotReady(
                    f"table {replaced.table}: events were decoded again, and its state is not rebuilt yet",
                    next_step="run state, then this again",
                )
    versions = {table: readable_version(paths, table, frontier) for table in tables}
    bootstrap = Bootstrap(frontier.position, frontier.batch, versions)
    return Cursor(frontier.position, frontier.batch, events.run, {}, bootstrap)


def _begin_now(events: EventTable) -> Cursor:
    open_transaction = events.find_open_transaction()
    if open_transaction is not None:
        return Cursor(open_transaction.before, open_transaction.batch - 1, events.run)
    newest = events.position_of_batch(events.batch)
    return Cursor(newest or BEGINNING, events.batch, events.run)


def _position_at(paths: Paths, where: str) -> Position | None:
    rows = query_rows(
        paths.events,
        f"SELECT incarnation, lsn, seq FROM t WHERE {where} ORDER BY incarnation DESC, lsn DESC, seq DESC LIMIT 1",
    )
    return Position(rows[0]["incarnation"], rows[0]["lsn"], rows[0]["seq"]) if rows else None


def _first_batch_after(paths: Paths, position: Position) -> int | None:
    i, lsn, seq = position.incarnation, position.lsn, position.seq
    later = f"incarnation > {i} OR (incarnation = {i} AND (lsn > {lsn} OR (lsn = {lsn} AND seq > {seq})))"
    rows = query_rows(paths.events, f"SELECT min(batch) AS batch FROM t WHERE {later}")
    return rows[0]["batch"] if rows else None
