"""State in plain Python: what a table holds after its events, one at a time, in order. The specification of the fold.

A row is ``(position, deleted, values)``, values as text; a tombstone's values are gone. Truncates reach every row.
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


@dataclass(frozen=True)
class Row:
    at: tuple[int, int, int]
    deleted: bool
    values: Image


def fold(events: Iterable[Event], columns: list[str]) -> dict[str, Row]:
    nothing: Image = dict.fromkeys(columns)
    state: dict[str, Row] = {}
    for event in sorted(events, key=lambda e: e.at):
        if event.op == "t":
            state = {key: Row(event.at, True, nothing) if row.at < event.at else row for key, row in state.items()}
            continue
        before = state.get(event.key)
        if event.op == "d":
            state[event.key] = Row(event.at, True, nothing)
        elif event.op in ("c", "r"):
            state[event.key] = Row(event.at, False, nothing | event.after)
        else:
            state[event.key] = Row(event.at, False, (before.values if before else nothing) | event.after)
    return state
