"""State in plain Python: what a table holds after its events, one at a time, in order. The specification of the fold.

A row is ``(position, deleted, values, missing)``, values as text; a tombstone's values are gone. Truncates reach every
row. A column that an event's schema does not have is one that it does not carry. ``missing`` are the columns nobody has
told the value of since the row began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Image = dict[str, str | None]


@dataclass(frozen=True)
class Event:
    at: tuple[int, int, int]
    op: str
    key: str
    after: Image
    batch: int = 0
    has: frozenset[str] | None = None
    """The columns of the event's schema, if not all there ever are."""


@dataclass(frozen=True)
class Row:
    at: tuple[int, int, int]
    deleted: bool
    values: Image
    missing: frozenset[str] = frozenset()


def fold(events: Iterable[Event], columns: list[str]) -> dict[str, Row]:
    nothing: Image = dict.fromkeys(columns)
    state: dict[str, Row] = {}
    for event in sorted(events, key=lambda e: e.at):
        if event.op == "t":
            state = {key: Row(event.at, True, nothing) if row.at < event.at else row for key, row in state.items()}
            continue
        before = state.get(event.key)
        told = event.after.keys()
        if event.op == "d":
            state[event.key] = Row(event.at, True, nothing)
        elif event.op in ("c", "r"):
            has = frozenset(columns) if event.has is None else event.has
            state[event.key] = Row(event.at, False, nothing | event.after, has - told)
        elif before and not before.deleted:
            state[event.key] = Row(event.at, False, before.values | event.after, before.missing - told)
        else:
            state[event.key] = Row(event.at, False, nothing | event.after, frozenset(columns) - told)
    return state
