"""Dumps of a memory database: control, throttle, failure, and commits in the log that are not yet visible."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dblake.base.core.errors import SourceError
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture import schedule
from dblake.ingest.capture.dump_queue import queue_dump, read_requests, set_control
from dblake.ingest.capture.dump_task import DumpControl
from dblake.ingest.capture.throttle import Throttle, set_throttle
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
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


def controlled(lake: CaptureLake, control: DumpControl) -> Callable[[], None]:
    """Return a step that sets the control of all requests."""
    def apply() -> None:
        for request in read_requests(lake.store):
            set_control(lake.store, request, control)

    return apply


def landed_chunks(lake: CaptureLake, table: str) -> Callable[[], None]:
    """Return a step that waits until as many chunks of the table have landed as it was called for."""
    numbers = itertools.count(1)

    def wait() -> None:
        number, deadline = next(numbers), time.monotonic() + 10
        while not Path(lake.paths.landing).exists() or sum(
            row["kind"] == "high" and row["table"] == table for row in lake.landing().to_pylist()
        ) < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


def test_paused_dump_stops_after_current_chunk_and_resumes(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)
    lake.capture(source(database), steps={("read", T): controlled(lake, DumpControl.PAUSE)}, chunk_size=2)
    assert states(lake) == [(T, "paused", 1, 2)]
    controlled(lake, DumpControl.RUN)()
    lake.capture(source(database), chunk_size=2)
    assert states(lake) == [(T, "done", 5, 9)]
    assert [event.key for event in lake.reconciled()[0]] == [(str(number),) for number in range(1, 10)]


def test_cancelled_dump_stops_and_next_table_is_read(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)

    def cancel_and_queue_another() -> None:
        controlled(lake, DumpControl.CANCEL)()
        lake.dump(U)

    lake.capture(source(database), steps={("read", T): cancel_and_queue_another}, chunk_size=2)
    assert [(table, state) for table, state, _, _ in states(lake)] == [(T, "cancelled"), (U, "done")]


def test_higher_priority_dump_preempts_between_chunks(
    database: MemoryDatabase, lake: CaptureLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_QUEUE_SECONDS", 0.0)
    lake.dump(T)

    def queue_keys() -> None:
        queue_dump(lake.store, [U], [("1",)], priority=1)

    lake.capture(source(database), steps={("read", T): queue_keys}, chunk_size=2)
    highs = lake.landing().filter(pc.equal(lake.landing()["kind"], "high")).sort_by("lsn")["table"].to_pylist()
    # The last chunk of a whole table ends it.
    assert highs == [T, U, T, T, T, T, T]
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]


def test_throttle_changes_chunk_size_of_running_dump(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)
    lake.capture(
        source(database), chunk_size=2,
        steps={("read", T): lambda: set_throttle(lake.store, Throttle(chunk_size=100, delay=0.0))},
    )
    assert states(lake) == [(T, "done", 2, 9)]


def test_missing_table_fails_by_name_and_next_is_read(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump("public.gone", T)
    lake.capture(source(database))
    assert [(dump["table"], dump["state"], dump["error"]) for dump in lake.dumps()] == [
        ("public.gone", "failed", "table public.gone does not exist"), (T, "done", None),
    ]


def test_lagging_replica_read_discards_chunks_then_fails(database: MemoryDatabase, lake: CaptureLake) -> None:
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


def test_discarded_chunk_is_reread_after_lag(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T)
    lake.capture(source(database), chunk_size=4, steps={
        ("low", T): database.lag_readers, ("high", T): database.catch_up_readers,
    })
    assert states(lake) == [(T, "done", 3, 9)]
    assert lake.state(T) == {(row["id"],): row for row in database.rows(T)}


def test_chunk_that_lands_before_its_read_returns_counts(database: MemoryDatabase, lake: CaptureLake) -> None:
    lake.dump(T, U)
    steps: Steps = {("every high", T): landed_chunks(lake, T), ("every high", U): landed_chunks(lake, U)}
    lake.capture(source(database), chunk_size=3, readers=2, steps=steps)
    assert states(lake) == [(T, "done", 4, 9), (U, "done", 4, 9)]


def test_logged_commit_not_yet_visible_is_in_window(database: MemoryDatabase, lake: CaptureLake) -> None:
    unseen = database.begin()
    unseen.update(T, {"id": "1"}, {"v": "new"})
    unseen.commit(visible=False)
    lake.dump(T)
    lake.capture(source(database), steps={("high", T): unseen.reveal})
    assert lake.state(T) == {(row["id"],): row for row in database.rows(T)}
    assert lake.state(T)[("1",)]["v"] == "new"
    blind = [replace(t, end=replace(t.end, snapshot=None)) if isinstance(t, High) else t for t in lake.landed_records()]
    assert fold(reconcile(blind)[0])[T, ("1",)]["v"] == "a"


def test_broken_connection_costs_current_chunk_only(
    database: MemoryDatabase, lake: CaptureLake
) -> None:
    lake.dump(T)
    lake.capture(source(database), chunk_size=4, steps={("low", T): database.cut_connections})
    assert states(lake) == [(T, "done", 3, 9)]
    assert [event.key for event in lake.reconciled()[0]] == [(str(number),) for number in range(1, 10)]


def test_source_gone_for_good_ends_capture_retryable(database: MemoryDatabase, lake: CaptureLake) -> None:
    def go_away() -> None:
        with database.changed:
            database.cut_connections()
            database.slots["shop"].is_taken = True

    lake.dump(T)
    with pytest.raises(SourceError) as away:
        lake.capture(source(database), reconnect_seconds=0.3, steps={("low", T): go_away})
    assert away.value.retryable
