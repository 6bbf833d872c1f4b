"""Points → the events they include, or an error that names what can be read.

Place: between ``points`` and ``reading``. A position includes every event at or before it. A time includes the last
transaction in commit order that committed at or before it, and everything before that transaction. The source's clock
may go back between two commits: a transaction before the chosen one is included although its commit time is later, so
that what a time includes is always a prefix of history, and a later time never includes less.

Guarantee: an answer is given only for points that events cover. They begin with the first event, or, once maintenance
has removed superseded events, with the newest of those; they end with the newest complete transaction, or with the
newest landed batch that is reconciled, whose heartbeats show that nothing followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from dblake.base.core.errors import PointOutOfRange
from dblake.base.core.position import Position
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.incarnations import is_continued
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import find_table, list_files
from dblake.serve.read.event_log import EventLog, EventPlace
from dblake.serve.read.points import Point, describe
from dblake.transform.events.predicate import Predicate

_RETENTION = "maintain.events_days, which removed superseded events before it"
_FIRST = "the first event"


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything up to and including ``cut``; ``newest`` is the newest event among that."""

    cut: Position
    newest: EventPlace


@dataclass(frozen=True, slots=True)
class Coverage:
    """The earliest and latest readable point, each with its commit time, and what limits the earliest."""

    earliest: Position
    earliest_at: datetime | None
    limit: str
    latest: Position
    latest_at: datetime | None

    def reject(self, point: Point) -> NoReturn:
        """Raise PointOutOfRange for a point out of range."""
        raise PointOutOfRange(
            f"{point.text} cannot be read: the earliest readable point is "
            f"{describe(self.earliest, self.earliest_at)}, limited by {self.limit}; the latest is "
            f"{describe(self.latest, self.latest_at)}, the end of the events",
            next_step="choose a point in between; for a later one run capture and reconcile first",
        )


def resolve(point: Point, log: EventLog | None, paths: Paths) -> Resolved:
    """Return what a point includes. Raises PointOutOfRange if events do not cover it."""
    complete = log.newest_complete() if log else None
    if log is None or complete is None:
        raise PointOutOfRange(
            f"{point.text} cannot be read: there are no events yet", next_step="run capture and reconcile first"
        )
    coverage = read_coverage(log, complete, paths)
    position = point.position
    if point.before is not None:
        position = Position(complete.position.incarnation, max(point.before - 1, 0), Position.MAX)
    if position is not None:
        return _resolve_position(point, position, log, coverage, paths)
    if point.time is None:
        return Resolved(complete.position.end_of_transaction, complete)
    if coverage.latest_at is None or point.time > coverage.latest_at:
        coverage.reject(point)
    place = log.newest(Predicate(until=complete.position.end_of_transaction, committed_by=point.time))
    if place is None or place.position < coverage.earliest:
        coverage.reject(point)
    cut = place.position.end_of_transaction
    newest = log.newest(Predicate(until=cut))
    assert newest is not None, "the transaction has an event"
    return Resolved(cut, newest)


def read_coverage(log: EventLog, complete: EventPlace, paths: Paths) -> Coverage:
    """Return the range of points that events cover; ``complete`` is the newest event of a complete transaction."""
    oldest = log.oldest()
    assert oldest is not None, "there is an event"
    earliest, limit = oldest, _FIRST
    if log.consolidated:
        earliest, limit = log.newest(Predicate(until_batch=log.consolidated)) or oldest, _RETENTION
    latest, latest_at = complete.position.end_of_transaction, complete.committed_at
    newest = log.newest(Predicate())
    if newest is not None and not newest.is_open:
        landed, landed_at = _landed_until(paths, log.batch)
        latest = max(latest, landed.end_of_transaction) if landed else latest
        latest_at = max([time for time in (latest_at, landed_at) if time is not None], default=None)
    return Coverage(earliest.position, earliest.committed_at, limit, latest, latest_at)


def _resolve_position(
    point: Point, position: Position, log: EventLog, coverage: Coverage, paths: Paths
) -> Resolved:
    if position > coverage.latest:
        coverage.reject(point)
    newest = log.newest(Predicate(until=position))
    if newest is None or (position < coverage.earliest and not _is_recorded(paths, position)):
        coverage.reject(point)
    if position.incarnation < coverage.latest.incarnation:
        reached = newest.position
        is_after = (reached.incarnation, reached.lsn) < (position.incarnation, position.lsn)
        if is_after and not is_continued(paths, position.incarnation, position.incarnation + 1):
            _require_followed(point, position, log, reached)
    return Resolved(position, newest)


def _require_followed(point: Point, position: Position, log: EventLog, reached: Position) -> None:
    """Raise PointOutOfRange unless an earlier incarnation has an event after a position: its log may have been lost."""
    end = Position(position.incarnation, Position.MAX, 0)
    if log.newest(Predicate(after=position, until=end)) is None:
        raise PointOutOfRange(
            f"{point.text} cannot be read: the events of incarnation {position.incarnation} end with "
            f"{describe(reached)}, and the log behind it may be missing",
            next_step=f"choose {describe(reached)}, or a point of a later incarnation",
        )


def _is_recorded(paths: Paths, position: Position) -> bool:
    """Return True if state recorded exactly this transaction's end."""
    frontier = read_frontier(paths, until=position).position
    return frontier is not None and (frontier.incarnation, frontier.lsn) == (position.incarnation, position.lsn)


def _landed_until(paths: Paths, batch: int) -> tuple[Position | None, datetime | None]:
    """Return the newest position and commit time in landing's batches up to one; None where they are unknown."""
    landing = find_table(paths.landing)
    if landing is None:
        return None, None
    files = list_files(landing)
    names = [f"{end}.{name}" for end in ("min", "max") for name in ("batch", "incarnation", "lsn", "committed_at")]
    if not set(names) <= set(files.column_names):
        return None, None
    positions, times = list[Position](), list[datetime]()
    for one in files.select(names).to_pylist():
        if one["min.batch"] > batch:
            continue
        is_bounded = one["max.batch"] <= batch and one["min.incarnation"] == one["max.incarnation"]
        file = one if is_bounded else _landed_newest(paths, one["min.batch"], batch)
        if file["max.lsn"] is not None:
            positions.append(Position(file["max.incarnation"], file["max.lsn"]))
        if file["max.committed_at"] is not None:
            times.append(file["max.committed_at"].astimezone(UTC))
    return max(positions, default=None), max(times, default=None)


def _landed_newest(paths: Paths, first: int, last: int) -> dict[str, Any]:
    """Read what statistics do not bound: a compacted file with later batches, or with several incarnations."""
    where = f"batch BETWEEN {first} AND {last}"
    (time,) = query_rows(paths.landing, f"SELECT max(committed_at) AS at FROM t WHERE {where}")
    rows = query_rows(
        paths.landing, f"SELECT incarnation, max(lsn) AS lsn FROM t WHERE {where} AND lsn IS NOT NULL "
                       "GROUP BY incarnation ORDER BY incarnation DESC LIMIT 1",
    )
    row = rows[0] if rows else {"incarnation": None, "lsn": None}
    return {"max.incarnation": row["incarnation"], "max.lsn": row["lsn"], "max.committed_at": time["at"]}
