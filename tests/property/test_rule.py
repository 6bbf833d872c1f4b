"""The reconcile rule itself, without Spark: the model's events leave the rows that the source has.

The tests also prove the histories: each simpler rule, the published one first, leaves wrong rows for some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.model.dblog
from dblake.landing.control import CLOSED
from tests.model.dblog import ChunkRow, Event, High, Landed, LedgerRow, Moved, fold, orphans, reconcile, survivors
from tests.support.effort import EFFORT
from tests.support.histories import (
    MOVED_SEEDS,
    PHANTOM_GUARD_SEEDS,
    STEP_NUMBERS,
    Step,
    World,
    play,
    random_steps,
)
from tests.support.landed import to_model

STEPS = st.lists(st.tuples(*(st.integers(0, count - 1) for count in STEP_NUMBERS)), max_size=80)
Rule = Callable[[list[Landed]], list[Event]]


def find_faults(world: World, events: list[Event]) -> list[str]:
    """Return the differences between the folded events and the source's rows.

    A row whose key changed may lack a value that the change omitted: if its key moved while its table was dumped, and
    no event and no chunk has the value. An added column that no event has set is NULL.
    """
    rows = fold(events)
    sent = {value for event in events for value in (event.after or {}).values()} | read_values(world)
    omits: dict[tuple[str, object], bool] = {}
    for event in events:
        if event.op in "cr":
            omits[event.table, event.key] = event.op == "c" and not event.whole
    faults = [f"{at} should not exist" for at in rows.keys() - world.visible.keys()]
    for at, truth in world.visible.items():
        row = rows.get(at)
        if row is None:
            faults.append(f"{at} is missing")
        elif any(row[name] != truth[name] for name in row.keys() & truth.keys()):
            faults.append(f"{at} is wrong")
        elif lacking := missing_columns(world, row, truth):
            lost = {name for name in lacking if not omits.get(at) or truth[name] in sent}
            faults += [f"{at} lacks {sorted(lost)}"] if lost else []
    return faults


def read_values(world: World) -> set[str | None]:
    """Return the values in rows of chunks whose windows closed, if no other row can have had the row's key then.

    A snapshot shows which row it was.
    """
    landing = to_model(world.landing)
    log = [e for e in landing if isinstance(e, Event)]
    windows = {(h.chunk_id, h.table, h.lease_epoch): h.window for h in landing
               if isinstance(h, High) and h.end.status == CLOSED}
    values: set[str | None] = set()
    for row in (r for r in landing if isinstance(r, ChunkRow)):
        window = windows.get((row.chunk_id, row.table, row.lease_epoch))
        if window:
            inside = {e.op for e in log if (e.table, e.key) == (row.table, row.key) and
                      window.holds(e.position, e.txid)}
            values |= set(row.after.values()) if window.snapshot or not inside >= {"c", "d"} else set()
    return values


def missing_columns(world: World, row: Mapping[str, str | None], truth: Mapping[str, str | None]) -> set[str]:
    """Return the columns that no event has set although the source has a value."""
    return {name for name in truth.keys() - row.keys() if name not in world.added or truth[name] is not None}


def find_wrong_seeds(seeds: Iterable[int], *, minimal: bool, moving: bool, promoted: bool = False) -> list[int]:
    """Return the seeds whose histories end with wrong rows under the rule of the model."""
    worlds = (
        (seed, play(random_steps(seed), minimal=minimal, moving=moving, promoted=promoted)) for seed in seeds
    )
    return [seed for seed, world in worlds if find_faults(world, reconcile(to_model(world.landing))[0])]


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans(), st.booleans(), st.booleans())
def test_rule_any_history_leaves_source_rows(steps: list[Step], minimal: bool, moving: bool, promoted: bool) -> None:
    """A log moves only where snapshots have no numbers: those of two servers could not be compared."""
    world = play(steps, minimal=minimal, moving=moving, promoted=promoted and minimal)
    events, _ = reconcile(to_model(world.landing))
    assert find_faults(world, events) == []
    assert len({e.position for e in events}) == len(events)


@pytest.mark.parametrize(("minimal", "moving", "promoted"), [
    pytest.param(False, False, False, id="TOAST"), pytest.param(False, True, False, id="TOAST-keys change"),
    pytest.param(True, True, False, id="MINIMAL-keys change"),
    pytest.param(True, False, True, id="MINIMAL-promoted"),
    pytest.param(True, True, True, id="MINIMAL-keys change-promoted"),
])
@pytest.mark.parametrize("seeds", [
    pytest.param([*range(300), *PHANTOM_GUARD_SEEDS], id="short"),
    pytest.param(range(300, 300 + 1000 * EFFORT), id="long", marks=pytest.mark.slow),
])
def test_rule_seeded_histories_leave_source_rows(
    seeds: Iterable[int], minimal: bool, moving: bool, promoted: bool
) -> None:
    assert find_wrong_seeds(seeds, minimal=minimal, moving=moving, promoted=promoted) == []


def test_promoted_histories_dump_across_moves() -> None:
    """Dumps that begin in one incarnation end in the next, and remove rows that vanished without a log entry."""
    landings = [to_model(play(random_steps(seed), minimal=True, promoted=True).landing) for seed in range(300)]
    across, removed = 0, 0
    for landing in landings:
        ends = [x for x in landing if isinstance(x, High) and x.end.began]
        spanning = {x.chunk_id for x in ends if x.end.began and x.end.began.incarnation < x.position.incarnation}
        ledger = reconcile(landing)[1]
        across += len(spanning)
        removed += sum(line.removed for line in ledger if line.chunk_id in spanning)
        moves = {x.incarnation for x in landing if isinstance(x, Moved)}
        assert [line.status for line in ledger if line.chunk_id == ""] == ["moved"] * len(moves)
    assert across > 100 and removed > 0


def by_position_only(landing: list[Landed]) -> list[Event]:
    highs = [replace(x, end=replace(x.end, snapshot=None)) if isinstance(x, High) else x for x in landing]
    return reconcile(highs)[0]


def without_fills(landing: list[Landed]) -> list[Event]:
    return [e for e in reconcile(landing)[0] if e.op != "f"]


def partial_updates_evict_nothing(landing: list[Landed]) -> list[Event]:
    return evict_by(landing, lambda e: not (e.op == "u" and "big" not in (e.after or {})))


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
    return evict_by(landing, lambda e: e.position.seq % 2 == 1 or e.op != "d")


def truncates_evict_nothing(landing: list[Landed]) -> list[Event]:
    return evict_by(landing, lambda e: e.op != "t")


def earlier_batches_evict_nothing(landing: list[Landed]) -> list[Event]:
    return evict_by(landing, lambda e: True, since_chunk=True)


def phantoms_remain(landing: list[Landed]) -> list[Event]:
    return [e for e in reconcile(landing)[0] if not (e.op == "d" and e.chunk_id)]


def phantoms_ignore_snapshot(landing: list[Landed]) -> list[Event]:
    return reconcile([
        replace(x, end=replace(x.end, began=replace(x.end.began, snapshot=None)))
        if isinstance(x, High) and x.end.began else x for x in landing
    ])[0]


def evict_by(landing: list[Landed], evicts: Callable[[Event], bool], *, since_chunk: bool = False) -> list[Event]:
    """Return the events under a rule by which only some log events evict chunk rows."""
    log = [e for e in landing if isinstance(e, Event)]
    events = list(log)
    for high in (h for h in landing if isinstance(h, High) and h.end.status == CLOSED):
        first = high.end.first_batch if since_chunk else 0
        events += survivors(high, [e for e in log if evicts(e) and e.batch >= first], landing)
    return sorted(events, key=lambda e: e.position)


#: Every rule fails for one of the first hundred seeds or for a guard seed; the rest is for changed histories.
_SEEDS = (*PHANTOM_GUARD_SEEDS, *range(1000))


@pytest.mark.parametrize("rule", [
    by_position_only, without_fills, partial_updates_evict_nothing, old_keys_evict_nothing, truncates_evict_nothing,
    earlier_batches_evict_nothing, phantoms_remain, phantoms_ignore_snapshot,
])
def test_simpler_rule_some_history_leaves_wrong_rows(rule: Rule) -> None:
    worlds = (play(random_steps(seed)) for seed in _SEEDS)
    assert any(find_faults(world, rule(to_model(world.landing))) for world in worlds)


def count_incomplete_rows(world: World, events: list[Event]) -> int:
    """Count the rows that lack a column's value."""
    rows = fold(events)
    return sum(bool(missing_columns(world, rows[at], truth)) for at, truth in world.visible.items())


def key_changes_begin_rows(landing: list[Landed]) -> list[Event]:
    return [replace(e, key_before=None) for e in reconcile(landing)[0]]


@pytest.mark.parametrize(("rule", "seeds"), [
    pytest.param(creates_evict_whole_rows, [463, 470, 512], id="creates"),
    pytest.param(key_changes_begin_rows, [78, 90, 329], id="key changes"),
    *(pytest.param(rule, range(2600, 2600 + 400 * EFFORT), marks=pytest.mark.slow)
      for rule in (creates_evict_whole_rows, key_changes_begin_rows)),
])
def test_simpler_rule_loses_values_of_moved_rows(rule: Rule, seeds: Iterable[int]) -> None:
    worlds = [play(random_steps(seed)) for seed in seeds]
    landings = [to_model(world.landing) for world in worlds]
    kept = sum(count_incomplete_rows(w, reconcile(landing)[0]) for w, landing in zip(worlds, landings, strict=True))
    lost = sum(count_incomplete_rows(w, rule(landing)) for w, landing in zip(worlds, landings, strict=True))
    assert kept < lost


@pytest.mark.parametrize("minimal", [pytest.param(False, id="TOAST"), pytest.param(True, id="MINIMAL")])
def test_evicted_moved_rows_lose_values(monkeypatch: pytest.MonkeyPatch, minimal: bool) -> None:
    monkeypatch.setattr(tests.model.dblog, "followed", lambda *_: None)
    assert find_wrong_seeds(MOVED_SEEDS, minimal=minimal, moving=True)


def test_histories_cover_every_case_of_rule() -> None:
    landings = [to_model(play(random_steps(seed), f"h{seed}").landing) for seed in range(300)]
    events: list[Event] = []
    ledger: list[LedgerRow] = []
    for landing in landings:
        own_events, own_ledger = reconcile(landing)
        events += own_events
        ledger += own_ledger
    assert {e.op for e in events} == set("cudtrf")
    assert {(row.status, row.reason) for row in ledger} == {
        ("closed", None), ("discarded", "tried"), ("discarded", "orphaned"),
        ("discarded", "schema changed in the window"),
    }
    schemas = {op: {(e.table, e.schema_id) for e in events if e.op == op} for op in "cudtrf"}
    changed = {op for op, versions in schemas.items() if len(versions) > len({table for table, _ in versions})}
    assert changed >= set("curd")
    records = [record for landing in landings for record in landing]
    closed = {x.chunk_id for x in records if isinstance(x, High)}
    assert any(isinstance(x, ChunkRow) and x.chunk_id not in closed for x in records)
    assert any(orphans(landing, []) for landing in landings)
