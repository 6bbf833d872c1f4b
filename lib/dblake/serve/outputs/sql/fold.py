"""Fold a stretch of the stream to one change per table and key, so that a target applies it set by set.

Place: first step of ``output``. A function of events, without a database. Guarantee: applying the folded changes leaves
the same rows as applying the events one by one, in order. The rules are state's (``state.fold``):

- ``c`` and ``r`` begin a row: a column that they lack becomes NULL. ``d`` ends it.
- ``u`` and ``f`` supply the columns that they carry; the others keep their value.
- ``t`` ends every row of the table before it.

A row is ``incomplete`` if no event supplied its begin, or only in part, until an event supplies all of it. An example
is an update without its unchanged TOAST values of a key that the target does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.serve.consume.model import Event

Key = tuple[str | None, ...]


@dataclass(slots=True)
class RowChange:
    """The newest of one key. ``event`` is the last event, for messages.

    ``values`` are its columns' texts. ``begins``: columns that are absent become NULL, instead of keeping their value.
    """

    event: Event
    values: dict[str, str | None]
    begins: bool
    deleted: bool = False
    incomplete: bool = False


@dataclass(slots=True)
class TableChanges:
    """One table's changes: first all rows up to ``truncated`` are deleted, then ``rows`` apply."""

    table: str
    truncated: Position | None = None
    rows: dict[Key, RowChange] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Fold one more event, a later one than all before it."""
        if event.op == Op.TRUNCATE:
            self.truncated = event.position
            self.rows.clear()
            return
        key = tuple((event.key or {}).get(name) for name in event.schema.primary_key)
        row = self.rows.get(key)
        if event.op == Op.DELETE:
            self.rows[key] = RowChange(event, {**(event.key or {})}, begins=True, deleted=True)
            return
        after = event.after or {}
        is_whole = len(after) >= len(event.schema.columns) or all(name in after for name in event.schema.names)
        if event.op in (Op.CREATE, Op.READ):
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


def fold_events(events: Iterable[Event]) -> dict[str, TableChanges]:
    """Return the changes of each table, by its qualified name."""
    changes: dict[str, TableChanges] = {}
    for event in events:
        table = changes.get(event.table)
        if table is None:
            table = changes[event.table] = TableChanges(event.table)
        table.add(event)
    return changes
