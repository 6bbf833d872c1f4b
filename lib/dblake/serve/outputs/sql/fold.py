"""Fold a stretch of the stream to one change per table and key, so that a target applies it set by set.

Place: first step of ``output``. A function of events, without a database. Guarantee: applying the folded changes leaves
the same rows as applying the events one by one, in order. The rules are state's (``state.fold``):

- ``c`` and ``r`` begin a row: a column that they lack becomes NULL. ``d`` ends it.
- ``u`` and ``f`` supply the columns that they carry; the others keep their value.
- ``t`` ends every row of the table before it.
- A partial ``c`` of a key change continues the row that the newest delete of its old key ended. What no event of the
  stretch supplies is in the target's row of its ``origin``, as of before the stretch.

A row is ``incomplete`` if no event supplied its begin, or only in part, until an event supplies all of it. An example
is an update without its unchanged TOAST values of a key that the target does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.serve.consume.model import Event, Image

Key = tuple[str | None, ...]


@dataclass(slots=True)
class RowChange:
    """The newest of one key. ``event`` is the last event, for messages.

    ``values`` are its columns' texts. ``begins``: columns that are absent become NULL, instead of keeping their value.
    With an ``origin`` they have the values of that key's row instead, or of the row's own if the target already has
    the create at ``moved_at``.
    """

    event: Event
    values: dict[str, str | None]
    begins: bool
    deleted: bool = False
    incomplete: bool = False
    origin: Key | None = None
    moved_at: Position | None = None


@dataclass(slots=True)
class TableChanges:
    """One table's changes: first all rows up to ``truncated`` are deleted, then ``rows`` apply.

    ``ended`` are the rows that the newest deletes ended, None where there was none.
    """

    table: str
    truncated: Position | None = None
    rows: dict[Key, RowChange] = field(default_factory=dict)
    ended: dict[Key, RowChange | None] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Fold one more event, a later one than all before it."""
        if event.op == Op.TRUNCATE:
            self.truncated = event.position
            self.rows.clear()
            self.ended.clear()
            return
        key = key_of(event)
        row = self.rows.get(key)
        if event.op == Op.DELETE:
            self.ended[key] = self._ended(event, row)
            self.rows[key] = RowChange(event, {**(event.key or {})}, begins=True, deleted=True)
            return
        after = event.after or {}
        is_whole = len(after) >= len(event.schema.columns) or _is_whole(event, after)
        if not is_whole and event.op == Op.CREATE and event.key_before is not None:
            self.rows[key] = self._moved(event)
        elif event.op in (Op.CREATE, Op.READ):
            self.rows[key] = RowChange(event, {**(event.key or {}), **after}, begins=True, incomplete=not is_whole)
        elif row is None or row.deleted:
            self.rows[key] = RowChange(
                event, {**(event.key or {}), **after}, begins=row is not None,
                incomplete=not is_whole and event.op != Op.FILL,
            )
        else:
            row.event = event
            row.values.update(after)
            row.incomplete = row.incomplete and not is_whole and event.op != Op.FILL

    def _ended(self, event: Event, row: RowChange | None) -> RowChange | None:
        """Return the row that a delete ends: ``row``, or the target's unless a truncate has ended that."""
        if row is not None:
            return None if row.deleted else row
        return None if self.truncated else RowChange(event, {}, begins=False)

    def _moved(self, event: Event) -> RowChange:
        """Return the row of a partial create that a key change made."""
        old = old_key_of(event)
        ended = self.ended.get(old)
        supplied = {**(event.key or {}), **(event.after or {})}
        if ended is None:
            return RowChange(event, supplied, begins=True, incomplete=True)
        values = {**ended.values, **supplied}
        origin = ended.origin or (None if ended.begins else old)
        is_incomplete = not _is_whole(event, values) and (origin is not None or ended.incomplete)
        moved_at = None if origin is None else event.position
        return RowChange(
            event, values, begins=True, incomplete=is_incomplete, origin=origin, moved_at=moved_at
        )


class Stretches:
    """Divide a stream into stretches whose folds the target applies exactly once, also if events come again.

    A target is as of the end of a transaction. So within one fold a row may change its key in one transaction only:
    its origin is then the row that the target has before that transaction.
    """

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._events: list[Event] = []
        self._moved: dict[tuple[str, Key], tuple[int, int]] = {}

    def add(self, event: Event) -> list[Event]:
        """Add an event; return the events of the stretch that ends before it, often none."""
        ended = self.end() if self._events and self._begins_with(event) else []
        self._events.append(event)
        if event.key_before is not None and not _is_whole(event, event.after or {}):
            self._moved[event.table, key_of(event)] = (event.position.incarnation, event.position.lsn)
        return ended

    def end(self) -> list[Event]:
        """Return the events of the stretch, and begin the next one."""
        events, self._events = self._events, []
        self._moved.clear()
        return events

    def _begins_with(self, event: Event) -> bool:
        if event.source != self._events[0].source:
            return True
        if event.key_before is not None:
            # The delete before it has the row that this create continues.
            return False
        at = (event.position.incarnation, event.position.lsn)
        is_moved_again = (
            event.op == Op.DELETE and bool(self._moved) and self._moved.get((event.table, key_of(event)), at) != at
        )
        return is_moved_again or len(self._events) >= self._max_events


def key_of(event: Event) -> Key:
    """Return an event's key in key order."""
    return tuple((event.key or {}).get(name) for name in event.schema.primary_key)


def old_key_of(event: Event) -> Key:
    """Return the key that a key change replaced, in key order."""
    return tuple((event.key_before or {}).get(name) for name in event.schema.primary_key)


def _is_whole(event: Event, values: Image) -> bool:
    return all(name in values for name in event.schema.names)


def fold_events(events: Iterable[Event]) -> dict[str, TableChanges]:
    """Return the changes of each table, by its qualified name."""
    changes: dict[str, TableChanges] = {}
    for event in events:
        table = changes.get(event.table)
        if table is None:
            table = changes[event.table] = TableChanges(event.table)
        table.add(event)
    return changes
