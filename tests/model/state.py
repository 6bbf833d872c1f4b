"""The executable specification of the state fold: a table's rows after its events, one event at a time, in order.

A row is ``(position, deleted, values, missing)`` with values as text; a tombstone keeps no values. A truncate deletes
every row. An event does not carry columns that its schema lacks. ``missing`` are the columns whose value no event has
set since the row began. A partial create that a key change made continues the row of its old key, as that was when the
newest delete of the old key ended it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Image = dict[str, str | None]


@dataclass(frozen=True)
class Event:
    """One event. ``columns`` are those of its schema, None for all that ever exist."""

    at: tuple[int, int, int]
    op: str
    key: str
    after: Image
    batch: int = 0
    columns: frozenset[str] | None = None
    key_before: str | None = None


@dataclass(frozen=True)
class Row:
    """One row of state or, if ``deleted``, a tombstone."""

    at: tuple[int, int, int]
    deleted: bool
    values: Image
    missing: frozenset[str] = frozenset()


def fold(events: Iterable[Event], columns: list[str]) -> dict[str, Row]:
    """Return state after the events, by key. ``columns`` are all columns that ever exist."""
    empty: Image = dict.fromkeys(columns)
    state: dict[str, Row] = {}
    ended: dict[str, Row | None] = {}
    for event in sorted(events, key=lambda e: e.at):
        if event.op == "t":
            ended = {}
            state = {key: Row(event.at, True, empty) if row.at < event.at else row for key, row in state.items()}
            continue
        row = state.get(event.key)
        carried = event.after.keys()
        moved = ended.get(event.key_before) if event.key_before is not None else None
        if event.op == "d":
            ended[event.key] = row if row and not row.deleted else None
            state[event.key] = Row(event.at, True, empty)
        elif event.op in ("c", "r"):
            schema = frozenset(columns) if event.columns is None else event.columns
            if moved and not schema <= carried:
                state[event.key] = Row(event.at, False, moved.values | event.after, moved.missing - carried)
                continue
            state[event.key] = Row(event.at, False, empty | event.after, schema - carried)
        elif row and not row.deleted:
            state[event.key] = Row(event.at, False, row.values | event.after, row.missing - carried)
        else:
            state[event.key] = Row(event.at, False, empty | event.after, frozenset(columns) - carried)
    return state
