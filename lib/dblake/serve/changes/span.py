"""The span between two points, and what it costs to compare a table's rows at its ends.

Place: between ``read`` and ``consolidate``. A span holds the events after ``start`` up to and including ``end``.
Guarantee: both ends and the events between come from one version of the events table.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.base.core.errors import PointOutOfRange, UsageError
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import has_table
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.points import Point, parse_point
from dblake.serve.read.reading import LakeReading, open_reading_at
from dblake.serve.read.resolve import Resolved, resolve
from dblake.transform.events.predicate import Predicate

_EVENT_BYTE_COST = 4.0
"""Time to decompress, decode and fold a byte of events, in times to read a byte of state."""


@dataclass(frozen=True)
class Costs:
    """Bytes to read for a table's consolidated changes, weighted: from its events, or from its rows at both ends."""

    events: float
    states: float


class Span:
    """The events after one point up to another. Raises UsageError if the first is the later one."""

    def __init__(self, paths: Paths, start: str, end: str) -> None:
        """Resolve both points. Raises PointOutOfRange for one that events do not cover."""
        first, last = parse_point(start), parse_point(end)
        if not has_table(paths.events):
            raise PointOutOfRange(f"{end} cannot be read: there are no events yet",
                                  next_step="run capture and reconcile first")
        self.paths, self.log = paths, EventLog(paths)
        self._end = resolve(last, self.log, paths)
        self._start = _resolve_start(first, self.log, paths)
        if self.start > self.end:
            raise UsageError(f"--from {start} is after --to {end}", next_step="exchange the two")
        self._before: LakeReading | None = None
        self._after: LakeReading | None = None

    @property
    def start(self) -> Position:
        """The position after which events count."""
        return self._start.cut if self._start else Position(1, 0, 0)

    @property
    def end(self) -> Position:
        """The position up to which events count."""
        return self._end.cut

    @property
    def position(self) -> Position:
        """The newest event at or before the end."""
        return self._end.newest.position

    @property
    def before(self) -> LakeReading | None:
        """The tables at the start; None if that precedes the first event."""
        if self._before is None and self._start is not None:
            self._before = open_reading_at(self.paths, self._start, self.log)
        return self._before

    @property
    def after(self) -> LakeReading:
        """The tables at the end; opened when first read."""
        if self._after is None:
            self._after = open_reading_at(self.paths, self._end, self.log)
        return self._after

    def selection(self, table: str | None = None) -> Predicate:
        """Return what selects the events of the span, of one table or of all."""
        return Predicate(until=self.end, after=self.start, tables=None if table is None else (table,))

    def estimate_costs(self, table: str) -> Costs:
        """Estimate both ways for a table."""
        rows, size = self.log.estimate(self.selection(table))
        before = self.before.estimate(table) if self.before and table in self.before.tables else None
        after = self.after.estimate(table) if table in self.after.tables else None
        states = sum(each.bytes for each in (before, after) if each)
        # A key is in one file at most.
        touched = before.bytes * min(1.0, rows / max(before.files, 1)) if before else 0.0
        return Costs(_EVENT_BYTE_COST * size + touched, states)


def _resolve_start(point: Point, log: EventLog, paths: Paths) -> Resolved | None:
    """Resolve a span's first point; None for a position before all events, if none of them has been removed."""
    oldest = log.oldest()
    if point.position is not None and oldest and point.position < oldest.position and not log.consolidated:
        return None
    return resolve(point, log, paths)
