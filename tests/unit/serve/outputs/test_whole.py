"""Whole rows: every event that leaves a row carries the columns that a plain fold of all events has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.errors import ConsumeError, PointOutOfRange, StateNotReady
from dblake.base.core.position import Position
from dblake.serve.consume import state_rows
from dblake.serve.consume import transactions as spooling
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import STATE, Event
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs import whole as module
from dblake.serve.outputs.whole import WholeRows
from tests.support.effort import seeds
from tests.support.partial_history import PartialHistory, T
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema


def _delivered(history: PartialHistory, selection: Selection, max_events: int, start: str) -> list[Event]:
    whole = WholeRows(history.lake.paths, selection)
    settings = SubscriptionSettings(selection, start, until_caught_up=True)
    with Subscription([history.lake.paths], settings) as subscription:
        return [event for batch in subscription.batches(max_events) for one in whole.complete(batch)
                for event in one.events]


def _check(history: PartialHistory, events: Sequence[Event]) -> None:
    for event in events:
        if event.origin != STATE and event.op not in "dt":
            assert event.after == history.expected[event.position], event


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_events_have_rows_of_plain_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """State is folded now and then; batches, shares of the keys, and large transactions in files differ."""
    history = PartialHistory(tmp_path, seed)
    for _ in range(5):
        history.land(history.random.randrange(1, 5))
        if history.random.random() < 0.4:
            history.lake.fold(history.batch)
    everything = _delivered(history, Selection(), 15, "1/0")
    assert {event.position for event in everything if event.op not in "dt"} == set(history.expected)
    _check(history, everything)
    share = Selection(partition=Partition("hash", 2, (seed % 2,)))
    _check(history, _delivered(history, share, 1000, "1/0"))
    if (tmp_path / "shop" / "state").exists():
        _check(history, _delivered(history, Selection(), 1000, "bootstrap"))
    monkeypatch.setattr(module, "_EVENTS_AT_ONCE", 5)
    monkeypatch.setattr(spooling, "SPOOLED_ROWS", 1)
    _check(history, _delivered(history, Selection(), 5, "1/0"))


def test_change_after_bootstrap_has_newest_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch begins with a row of the bootstrap, whose position is before the change of another row."""
    monkeypatch.setattr(state_rows, "ROWS_AT_ONCE", 1)
    order = ("1", "2")
    lake = PlainLake(tmp_path)
    lake.schema(T)
    lake.land(1, {T: [
        *((10 + n, "c", key, {"id": key, "a": "1", "b": "old", "c": "c"}) for n, key in enumerate(order)),
        *((20 + n, "u", key, {"id": key, "b": "new"}) for n, key in enumerate(order)),
    ]})
    lake.fold(1)
    lake.land(2, {T: [(30 + n, "u", key, {"id": key, "a": "2"}) for n, key in enumerate(order)]})
    whole = WholeRows(lake.paths, Selection())
    with Subscription([lake.paths], SubscriptionSettings(until_caught_up=True)) as subscription:
        everything = list(subscription)
    oldest, newest = (n for n, one in enumerate(everything) if any(event.origin == STATE for event in one.events))
    batch = [everything[oldest], *everything[newest + 1:]]
    changes = [event for one in whole.complete(batch) for event in one.events if event.origin != STATE]
    assert [event.after for event in changes] == [{"id": key, "a": "2", "b": "new", "c": "c"} for key in order]


def test_key_that_came_from_another_member_is_whole(tmp_path: Path) -> None:
    """A member of a group has the selection of the whole output, but events of some keys only."""
    lake = PlainLake(tmp_path)
    lake.schema(T)
    share, keys = Partition("hash", 2, (0,)), [str(number) for number in range(9)]
    is_own = dict(zip(keys, share.select_texts(pa.array(keys), 1), strict=True))
    (own, new, *_), (old, *_) = ([key for key in keys if is_own[key] == wanted] for wanted in (True, False))
    rows = event_rows(T, 1, [
        (10, "c", old, {"id": old, "a": "1", "b": "old", "c": "c"}),
        (20, "c", own, {"id": own, "a": "1", "b": "b", "c": "c"}),
        (30, "u", old, {"id": old, "b": "new"}),
        (40, "d", old, None),
        (40, "c", new, {"id": new, "a": "2"}, [], old),
    ]).to_pylist()
    rows[-2]["last_in_txn"], rows[-1]["seq"] = False, 1
    lake.append(pa.Table.from_pylist(rows, schema=event_rows(T, 1, []).schema), 1)
    settings = SubscriptionSettings(Selection(partition=share), "1/0", until_caught_up=True)
    with Subscription([lake.paths], settings) as subscription:
        delivered = WholeRows(lake.paths, Selection(), is_group=True).complete(list(subscription))
    assert [event.after for one in delivered for event in one.events] == [
        {"id": own, "a": "1", "b": "b", "c": "c"}, {"id": new, "a": "2", "b": "new", "c": "c"}
    ]


def test_columns_left_out_stay_out(tmp_path: Path) -> None:
    history = PartialHistory(tmp_path, 1)
    history.land(20)
    events = _delivered(history, Selection(columns={"*.*": ["a", "b"]}), 10, "1/0")
    images = [event.after for event in events if event.after is not None]
    assert images and all(list(image) == ["id", "a", "b"] for image in images)


def test_value_that_state_cannot_hold_comes_from_events(tmp_path: Path) -> None:
    schema = table_schema("public.s", "id text key", "at timestamp without time zone", "raw text", "v integer")
    lake = PlainLake(tmp_path)
    lake.schema(schema)
    row = {"id": "1", "at": "infinity", "raw": "\\xff00", "v": "1"}
    lake.land(1, {schema: [(10, "c", "1", row, ["raw"])]})
    lake.fold(1)
    lake.land(2, {schema: [(20, "u", "1", {"id": "1", "v": "2"})]})
    history = PartialHistory(tmp_path / "other", 0)
    history.lake = lake
    (event,) = _delivered(history, Selection(), 10, "1/10")
    assert event.after == row | {"v": "2"} and list(event.undecoded) == ["raw"]


def test_column_that_nothing_carried_stays_absent(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    lake.schema(T)
    lake.land(1, {T: [(10, "u", "1", {"id": "1", "a": "1"}), (20, "u", "1", {"id": "1", "b": "x"})]})
    history = PartialHistory(tmp_path / "other", 0)
    history.lake = lake
    first, second = _delivered(history, Selection(), 10, "1/0")
    assert (first.after, second.after) == ({"id": "1", "a": "1"}, {"id": "1", "a": "1", "b": "x"})


def test_rows_that_are_gone_end_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = PartialHistory(tmp_path, 3)
    history.land(10)

    def fails(*_: object) -> None:
        raise PointOutOfRange("1/20 cannot be read")

    with pytest.raises(StateNotReady, match="events have not reached the rows"):
        module.RowLookup(history.lake.paths).find([(T.table, ("1",))], Position(1, 10_000))
    monkeypatch.setattr(module, "resolve", fails)
    with pytest.raises(ConsumeError, match="whole rows cannot be read: 1/20 cannot be read") as caught:
        _delivered(history, Selection(), 1, "1/0")
    assert "--from bootstrap" in caught.value.next_step
