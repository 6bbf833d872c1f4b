"""Random histories of keys and tables for tests of the fold."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace

from dblake.core.schema import TableSchema
from tests.model.state import Event
from tests.support.schemas import table_schema

COLUMNS = ["a", "b", "c"]


def random_history(draw: random.Random, key: str, whole: bool) -> list[Event]:
    """Return operations in any order: the fold must have a result also for what a database would not do."""
    events = []
    for number in range(draw.randint(1, 7)):
        op = draw.choice("cuurd" if whole else "cuuuffrd")
        image = {c: draw.choice([None, f"{c}{number}"]) for c in COLUMNS if whole or draw.random() < 0.6}
        at = (1, draw.randrange(10_000), 0)
        events.append(Event(at, op, key, {} if op == "d" else image))
    unique = {event.at: event for event in events}
    return list(unique.values())


def altered_table(draw: random.Random, keys: int) -> tuple[list[TableSchema], list[int], list[Event]]:
    """Return a table's schemas, the lsn from which each but the first holds, and histories of keys through all of them.

    A column is added, one dropped, one renamed, one gets a wider type; truncates are in between, and updates leave
    columns out.
    """
    columns = {"a": "text", "b": "text", "c": "text", "w": "smallint"}
    schemas = [table_schema("public.altered", "id text key", *map(" ".join, columns.items()))]
    for change in draw.sample(["add", "drop", "rename", "widen"], 4):
        gone = draw.choice([name for name, kind in columns.items() if kind == "text" and name != "d"])
        if change == "widen":
            columns["w"] = "bigint"
        elif change == "add":
            columns["d"] = "text"
        else:
            columns.pop(gone)
            columns |= {"e": "text"} if change == "rename" else {}
        schemas.append(table_schema("public.altered", "id text key", *map(" ".join, columns.items())))
    since, truncates = sorted(draw.sample(range(1, 9_999), 4)), sorted(draw.sample(range(1, 9_999), 2))
    events = [Event((1, at, 0), "t", "", {}) for at in truncates]
    places = sorted(set(range(10_000)) - set(truncates))
    for number in range(keys):
        there, last = False, 0
        for at in sorted(draw.sample(places, draw.randint(1, 7))):
            there = there and not any(last < cut <= at for cut in truncates)
            last = at
            op = draw.choice("uuufrd") if there else draw.choice("cr")
            names = [c.name for c in schemas[bisect_right(since, at)].columns if c.name != "id"]
            image = {n: draw.choice([None, str(at)]) for n in names if op in "cr" or draw.random() < 0.6}
            there = op != "d"
            events.append(Event((1, at, 0), op, f"k{number}", {} if op == "d" else image, 0, frozenset(names)))
    return schemas, since, events


def in_batches(events: list[Event], batches: int) -> list[Event]:
    """Assign batch numbers; as reconcile guarantees, positions never decrease from one batch to the next."""
    ordered = sorted(events, key=lambda event: event.at)
    size = -(-len(ordered) // batches)
    return [replace(event, batch=1 + place // size) for place, event in enumerate(ordered)]
