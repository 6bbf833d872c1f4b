"""Dumps on a memory database: steered, slowed down, given up, and in the window of commits nobody sees yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dblake.capture import schedule
from dblake.capture.requests import Control, Throttle, direct, queue_dump, requests, set_throttle
from dblake.core.errors import SourceError
from dblake.core.schema import Column, TableSchema
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.source import MemorySource
from tests.model.dblog import High, fold, reconcile
from tests.support.lake import CaptureLake
from tests.support.steps import Steps

T, U = "public.t", "public.u"


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase()
    for table in (T, U):
        database.create_table(TableSchema(table, (Column("id", "integer", False, 1), Column("v", "text"))))
        with database.begin() as transaction:
            for number in range(1, 10):
                transaction.insert(table, {"id": str(number), "v": "a"})
    database.make_slot("shop")
    return database


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def source(database: MemoryDatabase) -> MemorySource:
    return MemorySource(database, name="shop", patterns=["public.*"])


def states(lake: CaptureLake) -> list[tuple[str, str, int, int]]:
    return [(dump["table"], dump["state"], dump["chunks"], dump["rows"]) for dump in lake.dumps()]


def wanted(lake: CaptureLake, control: Control) -> Callable[[], None]:
    def say() -> None:
        for request in requests(lake.store):
            direct(lake.store, request, control)

    return say


def test_paused_it_stops_after_the_chunk_under_way_and_later_goes_on(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    lake.dump(T)
    lake.capture(source(database), steps={("read", T): wanted(lake, Control.PAUSE)}, chunk_size=2)
    assert states(lake) == [(T, "paused", 1, 2)]
    wanted(lake, Control.RUN)()
    lake.capture(source(database), chunk_size=2)
    assert states(lake) == [(T, "done", 5, 9)]
    assert [event.key for event in lake.reconciled()[0]] == [(str(number),) for number in range(1, 10)]


def test_cancelled_it_stops_and_the_next_table_is_read(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)

    def cancel_and_ask_for_another() -> None:
        wanted(lake, Control.CANCEL)()
        lake.dump(U)

    lake.capture(source(database), steps={("read", T): cancel_and_ask_for_another}, chunk_size=2)
    assert [(table, state) for table, state, _, _ in states(lake)] == [(T, "cancelled"), (U, "done")]


def test_what_is_asked_for_first_goes_between_the_chunks_of_what_is_being_read(
    database: MemoryDatabase, lake: CaptureLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_QUEUE_SECONDS", 0.0)
    lake.dump(T)

    def ask() -> None:
        queue_dump(lake.store, [U], [("1",)], priority=1)

    lake.capture(source(database), steps={("read", T): ask}, chunk_size=2)
    highs = lake.landing().filter(pc.equal(lake.landing()["kind"], "high")).sort_by("lsn")["table"].to_pylist()
    # The last chunk of a whole table ends it.
    assert highs == [T, U, T, T, T, T, T]
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]


def test_a_throttle_changes_the_chunk_size_under_way(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)
    lake.capture(
        source(database), chunk_size=2,
        steps={("read", T): lambda: set_throttle(lake.store, Throttle(chunk_size=100, delay=0.0))},
    )
    assert states(lake) == [(T, "done", 2, 9)]


def test_a_table_that_is_not_there_fails_by_name_and_the_next_is_read(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    lake.dump("public.gone", T)
    lake.capture(source(database))
    assert [(dump["table"], dump["state"], dump["error"]) for dump in lake.dumps()] == [
        ("public.gone", "failed", "table public.gone is not in the database"), (T, "done", None),
    ]


def test_readers_that_lag_are_found_out_and_in_the_end_given_up(database: MemoryDatabase, lake: CaptureLake) -> None:
    database.lag_readers()
    with database.begin() as transaction:
        transaction.update(T, {"id": "1"}, {"v": "b"})
    lake.dump(T)
    lake.capture(source(database))
    ((_, state, chunks, rows),) = states(lake)
    assert (state, chunks, rows) == ("failed", 0, 0)
    events, ledger = lake.reconciled()
    assert [event.op for event in events] == ["u"]
    assert {line.reason for line in ledger} == {"the chunk was read elsewhere than its watermark was written"}
    assert len(ledger) == 10


def test_readers_that_stop_lagging_are_believed_again(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)
    lake.capture(source(database), chunk_size=4, steps={
        ("low", T): lambda: database.lag_readers(), ("high", T): lambda: database.catch_up_readers(),
    })
    assert states(lake) == [(T, "done", 3, 9)]
    assert lake.state(T) == {(row["id"],): row for row in database.rows(T)}


def test_a_chunk_may_land_before_its_reader_says_that_it_has_read_it(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    lake.dump(T, U)
    slow: Steps = {("every high", T): lambda: time.sleep(0.3), ("every high", U): lambda: time.sleep(0.1)}
    lake.capture(source(database), chunk_size=3, readers=2, steps=slow)
    assert states(lake) == [(T, "done", 4, 9), (U, "done", 4, 9)]


def test_a_commit_in_the_log_that_nobody_sees_yet_is_in_the_window(database: MemoryDatabase, lake: CaptureLake) -> None:
    unseen = database.begin()
    unseen.update(T, {"id": "1"}, {"v": "new"})
    unseen.commit(visible=False)
    lake.dump(T)
    lake.capture(source(database), steps={("high", T): unseen.reveal})
    assert lake.state(T) == {(row["id"],): row for row in database.rows(T)}
    assert lake.state(T)[("1",)]["v"] == "new"
    blind = [replace(t, end=replace(t.end, snapshot=None)) if isinstance(t, High) else t for t in lake.landed_records()]
    assert fold(reconcile(blind)[0])[T, ("1",)]["v"] == "a"


def test_a_broken_connection_in_the_middle_of_a_chunk_costs_that_chunk_only(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    lake.dump(T)
    lake.capture(source(database), chunk_size=4, steps={("low", T): database.cut_connections})
    assert states(lake) == [(T, "done", 3, 9)]
    assert [event.key for event in lake.reconciled()[0]] == [(str(number),) for number in range(1, 10)]


def test_a_source_that_goes_and_stays_away_ends_capture_with_try_again(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    def go_away() -> None:
        with database.changed:
            database.cut_connections()
            database.slots["shop"].taken = True

    lake.dump(T)
    with pytest.raises(SourceError) as away:
        lake.capture(source(database), reconnect_seconds=0.3, steps={("low", T): go_away})
    assert away.value.retryable
