"""Random histories of keys and tables for tests of the fold."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise

from dblake.base.core.schema import TableSchema
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


def moving_history(draw: random.Random, keys: int, steps: int, truncates: int) -> list[Event]:
    """Return a history of rows that change their keys, also in chains and swaps, with their batches.

    An event is a batch of its own or continues one, but a key change is never cut. Some keys have rows from before the
    history, of which no event has the values.
    """
    there = {f"k{n}" for n in range(keys // 2)}
    cuts = sorted(draw.sample(range(1, steps), truncates))
    events: list[Event] = []
    batch = 1

    def image(share: float) -> dict[str, str | None]:
        return {c: draw.choice([None, f"{c}{len(events)}"]) for c in COLUMNS if draw.random() < share}

    def move(old: str, new: str, lsn: int) -> None:
        seq = 2 * len(events)
        events.append(Event((1, lsn, seq), "d", old, {}, batch))
        events.append(Event((1, lsn, seq + 1), "c", new, image(0.5), batch, key_before=old))

    for lsn in range(1, steps):
        batch = 1 + 4 * lsn // steps
        key, other = (f"k{draw.randrange(keys)}" for _ in range(2))
        at = (1, lsn, 2 * len(events))
        if lsn in cuts:
            events.append(Event(at, "t", "", {}, batch))
            there = set()
        elif key not in there:
            events.append(Event(at, draw.choice("ccr"), key, image(2), batch))
            there.add(key)
        elif other not in there:
            names = [key, other, *draw.sample([f"chain{n}" for n in range(5)], draw.randrange(3))]
            for old, new in pairwise(names):
                move(old, new, lsn)
            there = there - {key} | {names[-1]}
            if names[-1] != other:
                move(names[-1], other, lsn)
                there = there - {names[-1]} | {other}
        elif key != other and draw.random() < 0.3:
            for old, new in ((key, "spare"), (other, key), ("spare", other)):
                move(old, new, lsn)
        else:
            op = draw.choice("uuufd")
            events.append(Event(at, op, key, {} if op == "d" else image(0.5), batch))
            there -= {key} if op == "d" else set()
    return events


def in_batches(events: list[Event], batches: int) -> list[Event]:
    """Assign batch numbers; as reconcile guarantees, positions never decrease from one batch to the next."""
    ordered = sorted(events, key=lambda event: event.at)
    size = -(-len(ordered) // batches)
    return [replace(event, batch=1 + place // size) for place, event in enumerate(ordered)]
