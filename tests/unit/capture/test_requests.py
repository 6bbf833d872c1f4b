"""Dumps as documents: order, control and what is left when either side dies between two writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dblake.capture.progress import FileProgress
from dblake.capture.requests import (
    Control,
    DumpProgress,
    DumpRequest,
    DumpTask,
    State,
    Stretch,
    Throttle,
    control,
    direct,
    pending,
    queue_dump,
    requests,
    save_progress,
    set_throttle,
    status,
    throttle,
)
from dblake.core.errors import ConfigError
from dblake.landing.control import DumpStart

LATER, EARLIER = DumpStart(1, 20, 0, "5:9:5,7"), DumpStart(1, 10, 0, "6:9:6")
"""By low watermark; the first saw less."""
ORDERS, ITEMS = "public.orders", 'public."or.der; drop"'


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path)


def states(store: FileProgress) -> list[tuple[str, str]]:
    return [(entry["table"], entry["state"]) for entry in status(store)]


def test_ids_are_readable_and_sort_by_time(store: FileProgress) -> None:
    ids = [queue_dump(store, [ORDERS]) for _ in range(3)]
    assert all(re.fullmatch(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{4}", dump_id) for dump_id in ids)
    assert [entry["id"][:19] for entry in status(store)] == [dump_id[:19] for dump_id in ids]


def test_what_is_queued_is_pending_in_the_order_asked_for(store: FileProgress) -> None:
    first = queue_dump(store, ["public.z", "public.a", ITEMS])
    second = queue_dump(store, [ORDERS], keys=[("1", "x"), ("2", "y"), ("1", "x")])
    tasks = pending(store)
    assert [(t.id, t.table, t.keys, t.chunks, t.rows, t.stretches) for t in tasks] == [
        (first, "public.z", None, 0, 0, ()),
        (first, "public.a", None, 0, 0, ()),
        (first, ITEMS, None, 0, 0, ()),
        (second, ORDERS, (("1", "x"), ("2", "y")), 0, 0, ()),
    ]


def test_a_higher_priority_comes_first(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    queue_dump(store, [ITEMS, "public.b"], priority=5)
    queue_dump(store, ["public.a"], priority=5)
    assert [t.table for t in pending(store)] == [ITEMS, "public.b", "public.a", ORDERS]


def test_a_restart_goes_on_after_the_last_chunk_saved(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending(store)
    task = save_progress(store, task.running().divided([("20", "z")]))
    task = save_progress(store, task.landed(0, 10, ("10", "a"), done=False, began=LATER))
    save_progress(store, task.landed(1, 3, ("23", "b"), done=True, began=EARLIER))
    (again,) = pending(store)
    assert (again.chunks, again.rows) == (2, 13)
    assert again.progress.began == DumpStart(1, 10, 0, "5:9:5,7")
    assert again.stretches == (
        Stretch(("10", "a"), ("20", "z"), done=False), Stretch(("23", "b"), None, done=True)
    )
    assert again.running().progress.started_at == task.progress.started_at


@pytest.mark.parametrize(
    ("end", "state", "error"),
    [
        (lambda task: task.done(), "done", None),
        (lambda task: task.cancelled(), "cancelled", None),
        (lambda task: task.failed("table public.orders has no primary key"), "failed",
         "table public.orders has no primary key"),
    ],
    ids=["done", "cancelled", "failed"],
)
def test_a_finished_dump_stays_in_the_status_only(store: FileProgress, end, state: str, error: str | None) -> None:  # type: ignore[no-untyped-def]
    dump_id = queue_dump(store, [ORDERS])
    (task,) = pending(store)
    save_progress(store, end(task.running().divided([]).landed(0, 7, ("7",), done=False, began=LATER)))
    assert pending(store) == []
    assert requests(store) == []
    (entry,) = status(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("started_at"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("finished_at"))
    assert entry == {"id": dump_id, "table": ORDERS, "state": state, "chunks": 1, "rows": 7, "error": error}


def test_status_of_a_dump_not_begun(store: FileProgress) -> None:
    dump_id = queue_dump(store, [ORDERS])
    assert status(store) == [{
        "id": dump_id, "table": ORDERS, "state": "queued", "chunks": 0, "rows": 0, "started_at": None,
        "finished_at": None, "error": None,
    }]


def test_pause_and_resume(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending(store)
    task = save_progress(store, task.running().divided([]).landed(0, 7, ("7",), done=False, began=LATER))
    direct(store, task.request, Control.PAUSE)
    assert control(store, task) is Control.PAUSE
    assert states(store) == [(ORDERS, "paused")]
    assert pending(store) == []
    save_progress(store, task.paused())
    direct(store, task.request, Control.RUN)
    assert states(store) == [(ORDERS, "queued")]
    assert [t.stretches[0].after for t in pending(store)] == [("7",)]


def test_cancel_counts_at_once_and_is_settled_when_capture_looks(store: FileProgress) -> None:
    queue_dump(store, [ORDERS, ITEMS])
    task, _ = pending(store)
    direct(store, task.request, Control.CANCEL)
    assert states(store) == [(ORDERS, "cancelled"), (ITEMS, "queued")]
    assert [t.table for t in pending(store)] == [ITEMS]
    assert [r.table for r in requests(store)] == [ITEMS]
    assert sorted(states(store)) == [(ITEMS, "queued"), (ORDERS, "cancelled")]
    assert control(store, task) is Control.CANCEL


def test_a_request_written_again_after_the_end_changes_nothing(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending(store)
    save_progress(store, task.running().done())
    direct(store, task.request, Control.PAUSE)
    assert states(store) == [(ORDERS, "done")]
    assert pending(store) == []
    assert requests(store) == []


def test_two_dumps_of_one_table_are_two(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (first,) = pending(store)
    save_progress(store, first.running().done())
    queue_dump(store, [ORDERS])
    (second,) = pending(store)
    assert second.id != first.id
    assert second.chunks == 0
    assert states(store) == [(ORDERS, "done"), (ORDERS, "queued")]


@pytest.mark.parametrize(
    ("days", "state", "kept"),
    [
        (31, State.DONE, False), (31, State.FAILED, False), (31, State.CANCELLED, False),
        (31, State.RUNNING, True), (31, State.PAUSED, True), (29, State.DONE, True),
    ],
)
def test_what_ended_long_ago_is_forgotten_when_another_is_asked_for(
    store: FileProgress, days: int, state: State, kept: bool
) -> None:
    then = datetime.now(UTC) - timedelta(days=days)
    old = f"{then:%Y%m%d-%H%M%S}-000-abcd"
    save_progress(store, DumpTask(DumpRequest(old, ORDERS, 1, then.isoformat()), DumpProgress(old, ORDERS, state)))
    new = queue_dump(store, [ORDERS])
    assert [entry["id"] for entry in status(store)] == ([old, new] if kept else [new])


def test_throttle(store: FileProgress) -> None:
    assert throttle(store) == Throttle(None, None)
    set_throttle(store, Throttle(chunk_size=500, delay=0.0))
    assert throttle(store) == Throttle(500, 0.0)
    set_throttle(store, Throttle())
    assert throttle(store) == Throttle(None, None)


@pytest.mark.parametrize("document", [{"id": "x"}, {"state": "asleep", "id": "x", "table": "t"}, {"other": 1}])
def test_a_document_of_another_version_is_an_error_by_name(store: FileProgress, document: dict[str, object]) -> None:
    store.write("dumps/progress/x.t", document)
    with pytest.raises(ConfigError, match=r"dumps/progress/x\.t is not one this version understands"):
        status(store)
