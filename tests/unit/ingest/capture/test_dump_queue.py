"""The dump queue: order, control, and its state after either side dies between two writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError
from dblake.ingest.capture.dump_queue import (
    dump_status,
    dumps_of,
    find_other_dump,
    pending_tasks,
    queue_dump,
    queue_import,
    queue_verification,
    read_control,
    read_requests,
    save_progress,
    set_control,
)
from dblake.ingest.capture.dump_task import DumpControl, DumpProgress, DumpRequest, DumpState, DumpTask, KeyRange
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.throttle import Throttle, read_throttle, set_throttle
from dblake.ingest.imports.spec import ImportSpec
from dblake.landing.control import DumpStart

LATER, EARLIER = DumpStart(1, 20, 0, "5:9:5,7"), DumpStart(1, 10, 0, "6:9:6")
"""By low watermark; the snapshot of the first sees less."""
ORDERS, ITEMS = "public.orders", 'public."or.der; drop"'


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path)


def states(store: FileProgress) -> list[tuple[str, str]]:
    return [(entry["table"], entry["state"]) for entry in dump_status(store)]


def test_dump_ids_sort_by_time(store: FileProgress) -> None:
    ids = [queue_dump(store, [ORDERS]) for _ in range(3)]
    assert all(re.fullmatch(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{4}", dump_id) for dump_id in ids)
    assert [entry["id"][:19] for entry in dump_status(store)] == [dump_id[:19] for dump_id in ids]


def test_pending_tasks_are_in_request_order(store: FileProgress) -> None:
    first = queue_dump(store, ["public.z", "public.a", ITEMS])
    second = queue_dump(store, [ORDERS], keys=[("1", "x"), ("2", "y"), ("1", "x")])
    tasks = pending_tasks(store)
    assert [(t.id, t.table, t.keys, t.chunks, t.rows, t.ranges) for t in tasks] == [
        (first, "public.z", None, 0, 0, ()),
        (first, "public.a", None, 0, 0, ()),
        (first, ITEMS, None, 0, 0, ()),
        (second, ORDERS, (("1", "x"), ("2", "y")), 0, 0, ()),
    ]


def test_higher_priority_is_pending_first(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    queue_dump(store, [ITEMS, "public.b"], priority=5)
    queue_dump(store, ["public.a"], priority=5)
    assert [t.table for t in pending_tasks(store)] == [ITEMS, "public.b", "public.a", ORDERS]


def test_restart_resumes_after_last_saved_chunk(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    task = save_progress(store, task.start().split_at([("20", "z")]))
    task = save_progress(store, task.add_chunk(0, 10, ("10", "a"), done=False, began=LATER))
    save_progress(store, task.add_chunk(1, 3, ("23", "b"), done=True, began=EARLIER))
    (resumed,) = pending_tasks(store)
    assert (resumed.chunks, resumed.rows) == (2, 13)
    assert resumed.progress.began == DumpStart(1, 10, 0, "5:9:5,7")
    assert resumed.ranges == (
        KeyRange(("10", "a"), ("20", "z"), done=False), KeyRange(("23", "b"), None, done=True)
    )
    assert resumed.start().progress.started_at == task.progress.started_at


@pytest.mark.parametrize(
    ("end", "state", "error"),
    [
        (lambda task: task.complete(), "done", None),
        (lambda task: task.cancel(), "cancelled", None),
        (lambda task: task.fail("table public.orders has no primary key"), "failed",
         "table public.orders has no primary key"),
    ],
    ids=["done", "cancelled", "failed"],
)
def test_finished_dump_is_in_status_only(store: FileProgress, end, state: str, error: str | None) -> None:  # type: ignore[no-untyped-def]
    dump_id = queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    save_progress(store, end(task.start().split_at([]).add_chunk(0, 7, ("7",), done=False, began=LATER)))
    assert pending_tasks(store) == []
    assert read_requests(store) == []
    (entry,) = dump_status(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("started_at"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("finished_at"))
    assert entry == {"id": dump_id, "table": ORDERS, "state": state, "chunks": 1, "rows": 7, "error": error,
                     "whole": True}


def test_progress_document_keys_outlive_versions(store: FileProgress) -> None:
    """A dump that one version has started is resumed by the next one."""
    dump_id = queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    save_progress(store, task.start().split_at([("20", "z")]))
    (path,) = store.list("dumps/progress")
    document = store.read(path) or {}
    assert document["id"] == dump_id
    assert document["stretches"] == [
        {"after": None, "upto": ["20", "z"], "done": False}, {"after": ["20", "z"], "upto": None, "done": False},
    ]
    assert sorted(document) == [
        "began", "chunks", "error", "finished_at", "id", "rows", "started_at", "state", "stretches", "table",
        "whole",
    ]


def test_status_of_queued_dump(store: FileProgress) -> None:
    dump_id = queue_dump(store, [ORDERS])
    assert dump_status(store) == [{
        "id": dump_id, "table": ORDERS, "state": "queued", "chunks": 0, "rows": 0, "started_at": None,
        "finished_at": None, "error": None, "whole": True,
    }]


def test_pause_and_resume_keep_progress(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    task = save_progress(store, task.start().split_at([]).add_chunk(0, 7, ("7",), done=False, began=LATER))
    set_control(store, task.request, DumpControl.PAUSE)
    assert read_control(store, task) is DumpControl.PAUSE
    assert states(store) == [(ORDERS, "paused")]
    assert pending_tasks(store) == []
    save_progress(store, task.pause())
    set_control(store, task.request, DumpControl.RUN)
    assert states(store) == [(ORDERS, "queued")]
    assert [t.ranges[0].after for t in pending_tasks(store)] == [("7",)]


def test_cancel_shows_at_once_and_is_saved_by_capture(store: FileProgress) -> None:
    queue_dump(store, [ORDERS, ITEMS])
    task, _ = pending_tasks(store)
    set_control(store, task.request, DumpControl.CANCEL)
    assert states(store) == [(ORDERS, "cancelled"), (ITEMS, "queued")]
    assert [t.table for t in pending_tasks(store)] == [ITEMS]
    assert [r.table for r in read_requests(store)] == [ITEMS]
    assert sorted(states(store)) == [(ITEMS, "queued"), (ORDERS, "cancelled")]
    assert read_control(store, task) is DumpControl.CANCEL


def test_request_rewritten_after_end_changes_nothing(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    save_progress(store, task.start().complete())
    set_control(store, task.request, DumpControl.PAUSE)
    assert states(store) == [(ORDERS, "done")]
    assert pending_tasks(store) == []
    assert read_requests(store) == []


def test_two_dumps_of_one_table_are_separate(store: FileProgress) -> None:
    queue_dump(store, [ORDERS])
    (first,) = pending_tasks(store)
    save_progress(store, first.start().complete())
    queue_dump(store, [ORDERS])
    (second,) = pending_tasks(store)
    assert second.id != first.id
    assert second.chunks == 0
    assert states(store) == [(ORDERS, "done"), (ORDERS, "queued")]


@pytest.mark.parametrize(
    ("days", "state", "kept"),
    [
        (31, DumpState.DONE, False), (31, DumpState.FAILED, False), (31, DumpState.CANCELLED, False),
        (31, DumpState.RUNNING, True), (31, DumpState.PAUSED, True), (29, DumpState.DONE, True),
    ],
)
def test_queueing_deletes_long_finished_dumps(
    store: FileProgress, days: int, state: DumpState, kept: bool
) -> None:
    then = datetime.now(UTC) - timedelta(days=days)
    old = f"{then:%Y%m%d-%H%M%S}-000-abcd"
    save_progress(store, DumpTask(DumpRequest(old, ORDERS, 1, then.isoformat()), DumpProgress(old, ORDERS, state)))
    new = queue_dump(store, [ORDERS])
    assert [entry["id"] for entry in dump_status(store)] == ([old, new] if kept else [new])


def test_throttle_round_trips(store: FileProgress) -> None:
    assert read_throttle(store) == Throttle(None, None)
    set_throttle(store, Throttle(chunk_size=500, delay=0.0))
    assert read_throttle(store) == Throttle(500, 0.0)
    set_throttle(store, Throttle())
    assert read_throttle(store) == Throttle(None, None)


@pytest.mark.parametrize("document", [{"id": "x"}, {"state": "asleep", "id": "x", "table": "t"}, {"other": 1}])
def test_incompatible_document_is_a_named_error(store: FileProgress, document: dict[str, object]) -> None:
    store.write("dumps/progress/x.t", document)
    with pytest.raises(ConfigError, match=r"dumps/progress/x\.t was written by an incompatible version"):
        dump_status(store)


def test_verification_is_no_dump_in_status_and_redump(store: FileProgress) -> None:
    """A queued verification must not pass for the dump that a stale table needs."""
    queued = queue_verification(store, ["public.t"])
    (task,) = pending_tasks(store)
    assert dump_status(store) == [] and not task.is_whole_dump
    assert [entry["id"] for entry in dump_status(store, verifications=True)] == [queued]
    queue_dump(store, ["public.t"])
    assert [each.is_whole_dump for each in pending_tasks(store)] == [False, True]


@pytest.mark.parametrize("import_id", ["20010101-000000-000-aaaa", "29990101-000000-000-aaaa"], ids=["behind", "ahead"])
def test_import_finds_dump_queued_after_it(store: FileProgress, import_id: str) -> None:
    """Whatever the clock of the machine that queued the import: neither a finished nor a pending dump is missed."""
    earlier = queue_dump(store, [ORDERS])
    (task,) = pending_tasks(store)
    save_progress(store, task.start().complete())
    spec = ImportSpec("csv", ("/x.csv",), EARLIER, "s", 1)
    queue_import(store, import_id, ORDERS, spec, dumps_of(store, ORDERS))
    (imported,) = pending_tasks(store)
    assert imported.request.earlier_dumps == (earlier,) and find_other_dump(store, imported) is None
    later = queue_dump(store, [ORDERS])
    assert find_other_dump(store, imported) == later
    (task,) = (task for task in pending_tasks(store) if task.id == later)
    save_progress(store, task.start().complete())
    assert find_other_dump(store, imported) == later
