"""The rule itself, without Spark: what the specification makes of a history leaves the rows the source has.

And the histories bite: each simpler rule, the published one first, ends wrong on some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblake.landing.control import CLOSED
from tests.model.dblog import ChunkRow, Event, High, Landed, fold, orphans, reconcile, survivors
from tests.support.histories import STEP_NUMBERS, Step, World, play, random_steps
from tests.support.landed import to_model

STEPS = st.lists(st.tuples(*(st.integers(0, count - 1) for count in STEP_NUMBERS)), max_size=80)


def faults(world: World, events: list[Event]) -> list[str]:
    """How the folded events differ from the source's rows.

    A key that came by a key change may lack the value the change left out: nothing in the log has it. A column that was
    added and that no event has told of is NULL.
    """
    rows = fold(events)
    born: dict[tuple[str, object], bool] = {}
    for event in events:
        if event.op in "cr":
            born[event.table, event.key] = event.op == "c" and "big" not in (event.after or {})
    found = [f"{at} should not be there" for at in rows.keys() - world.visible.keys()]
    for at, truth in world.visible.items():
        row = rows.get(at)
        if row is None:
            found.append(f"{at} is missing")
        elif any(row[name] != truth[name] for name in row.keys() & truth.keys()):
            found.append(f"{at} is wrong")
        elif (lacks := untold(world, row, truth)) and not born.get(at):
            found.append(f"{at} lacks {lacks}")
    return found


def untold(world: World, row: Mapping[str, str | None], truth: Mapping[str, str | None]) -> set[str]:
    """The columns that a row has a value of that no event has told."""
    return {name for name in truth.keys() - row.keys() if name not in world.added or truth[name] is not None}


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_events_leave_the_rows_the_source_has(steps: list[Step]) -> None:
    world = play(steps)
    events, _ = reconcile(to_model(world.landing))
    assert faults(world, events) == []
    assert len({e.position for e in events}) == len(events)


def test_thousands_of_seeded_histories() -> None:
    wrong = [seed for seed in range(3000) if faults(world := play(random_steps(seed)), reconcile(
        to_model(world.landing))[0])]
    assert wrong == []


def by_position_only(landing: list[Landed]) -> list[Event]:
    highs = [replace(x, end=replace(x.end, snapshot=None)) if isinstance(x, High) else x for x in landing]
    return reconcile(highs)[0]


def without_fills(landing: list[Landed]) -> list[Event]:
    return [e for e in reconcile(landing)[0] if e.op != "f"]


def partial_updates_evict_nothing(landing: list[Landed]) -> list[Event]:
    return with_log(landing, lambda e: not (e.op == "u" and "big" not in (e.after or {})))


def creates_evict_whole_rows(landing: list[Landed]) -> list[Event]:
    events = reconcile(landing)[0]
    windows = {h.chunk_id: h.window for h in landing if isinstance(h, High)}
    created = [(e.table, e.key, e.position, e.txid) for e in landing if isinstance(e, Event) and e.op == "c"]
    return [
        e for e in events if e.op != "f" or not any(
            (table, key) == (e.table, e.key) and windows[e.chunk_id or ""].holds(position, txid)
            for table, key, position, txid in created
        )
    ]


def old_keys_evict_nothing(landing: list[Landed]) -> list[Event]:
    return with_log(landing, lambda e: e.position.seq % 2 == 1 or e.op != "d")


def truncates_evict_nothing(landing: list[Landed]) -> list[Event]:
    return with_log(landing, lambda e: e.op != "t")


def only_what_landed_since_the_chunk_began(landing: list[Landed]) -> list[Event]:
    return with_log(landing, lambda e: True, since_chunk=True)


def phantoms_stay(landing: list[Landed]) -> list[Event]:
    return [e for e in reconcile(landing)[0] if not (e.op == "d" and e.chunk_id)]


def all_that_the_dump_did_not_return_goes(landing: list[Landed]) -> list[Event]:
    return reconcile([
        replace(x, end=replace(x.end, began=replace(x.end.began, snapshot=None)))
        if isinstance(x, High) and x.end.began else x for x in landing
    ])[0]


def discarded_chunks_stand(landing: list[Landed]) -> list[Event]:
    return reconcile([replace(x, end=replace(x.end, status=CLOSED)) if isinstance(x, High) else x for x in landing])[0]


def with_log(landing: list[Landed], evicts: Callable[[Event], bool], *, since_chunk: bool = False) -> list[Event]:
    """Events under a rule by which only some log events evict."""
    log = [e for e in landing if isinstance(e, Event)]
    events = list(log)
    for high in (h for h in landing if isinstance(h, High) and h.end.status == CLOSED):
        first = high.end.first_batch if since_chunk else 0
        events += survivors(high, [e for e in log if evicts(e) and e.batch >= first], landing)
    return sorted(events, key=lambda e: e.position)


@pytest.mark.parametrize("rule", [
    by_position_only, without_fills, partial_updates_evict_nothing, old_keys_evict_nothing, truncates_evict_nothing,
    only_what_landed_since_the_chunk_began, phantoms_stay, all_that_the_dump_did_not_return_goes,
])
def test_a_simpler_rule_ends_wrong(rule: Callable[[list[Landed]], list[Event]]) -> None:
    wrong = sum(bool(faults(world := play(random_steps(seed)), rule(to_model(world.landing)))) for seed in range(1000))
    assert wrong > 0


def lost(world: World, events: list[Event]) -> int:
    """Rows that lack a column, for whatever reason."""
    rows = fold(events)
    return sum(bool(untold(world, rows[at], truth)) for at, truth in world.visible.items())


def test_fills_after_a_create_save_values() -> None:
    worlds = [play(random_steps(seed)) for seed in range(1000)]
    landings = [to_model(world.landing) for world in worlds]
    kept = sum(lost(w, reconcile(landing)[0]) for w, landing in zip(worlds, landings, strict=True))
    strict = sum(lost(w, creates_evict_whole_rows(landing)) for w, landing in zip(worlds, landings, strict=True))
    assert kept < strict


def test_histories_hold_all_that_the_rule_speaks_of() -> None:
    landing = [x for seed in range(300) for x in to_model(play(random_steps(seed), f"h{seed}").landing)]
    events, ledger = reconcile(landing)
    assert {e.op for e in events} == set("cudtrf")
    assert {(line.status, line.reason) for line in ledger} == {
        ("closed", None), ("discarded", "tried"), ("discarded", "orphaned"),
        ("discarded", "schema changed in the window"),
    }
    told = {op: {(e.table, e.schema_id) for e in events if e.op == op} for op in "cudtrf"}
    assert {op for op, schemas in told.items() if len(schemas) > len({table for table, _ in schemas})} >= set("curd")
    closed = {x.chunk_id for x in landing if isinstance(x, High)}
    assert any(isinstance(x, ChunkRow) and x.chunk_id not in closed for x in landing)
    assert orphans(landing, [])
