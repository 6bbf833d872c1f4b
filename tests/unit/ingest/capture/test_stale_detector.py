"""Which catalog changes make a table stale, and that each change queues one dump."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import dblake.ingest.capture.stale_detector
from dblake.base.core.errors import ProgressUnavailable
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ColumnFingerprint, TableFingerprint
from dblake.ingest.capture.dump_queue import pending_tasks, queue_dump, save_progress
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.saved_fingerprint import SavedFingerprint, stale_reason
from dblake.ingest.capture.stale_detector import StaleTableDetector
from dblake.ingest.capture.stale_tables import read_stale_tables
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.landing.columns import CAPTURED, DDL, SCHEMA, TRUNCATE

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
WIDER = TableSchema("public.t", (*T.columns, Column("w", "text")))
ID = ColumnFingerprint("integer key 1", 1, "700")
V = ColumnFingerprint("text key None", 2, "700", labels={"9": "red"})
W = ColumnFingerprint("text key None", 3, "705", blank=True)


def fingerprint(
    columns: Mapping[str, ColumnFingerprint], bodies: Mapping[str, bool] | None = None, file: str = "f1"
) -> TableFingerprint:
    return TableFingerprint(T, columns, bodies or {"table 1": True}, file)


BEFORE = fingerprint({"id": ID, "v": V}, {"table 1": True, "partition 5": False})


@pytest.mark.parametrize(
    ("columns", "bodies", "file", "why"),
    [
        ({"id": ID, "v": V}, {}, "f1", None),
        ({"v": V, "id": ID}, {}, "f2", None),
        ({"id": ID}, {}, "f1", None),
        ({"id": ID, "v": V, "w": W}, {}, "f1", None),
        ({"id": ID, "v": V, "w": W}, {}, "f2", "column w was added"),
        ({"id": ID, "v": V, "w": ColumnFingerprint("text key None", 3)}, {}, "f1", "column w was added"),
        ({"id": ID, "w": ColumnFingerprint("text key None", 2, "700", blank=True)}, {}, "f1", "column w was added"),
        ({"id": ID, "v": ColumnFingerprint("text key None", 3, "705", blank=True)}, {}, "f1",
         "column v was replaced or has another type"),
        ({"id": ID, "v": ColumnFingerprint("bigint key None", 2, "705")}, {}, "f1",
         "column v was replaced or has another type"),
        ({"id": ID, "v": replace(V, labels={"9": "red", "11": "blue"})}, {}, "f1", None),
        ({"id": ID, "v": replace(V, labels={"9": "rot"})}, {}, "f1", "a label of column v was renamed"),
        ({"id": ID, "v": ColumnFingerprint("text key None", 2, "705")}, {}, "f1", None),
        ({"id": ID, "v": ColumnFingerprint("text key None", 2, "705")}, {}, "f2", "its columns were rewritten"),
        ({"id": ID, "v": V}, {"table 1": True}, "f1", "a partition of it was removed or rewritten"),
        ({"id": ID, "v": V}, {"table 2": True, "partition 5": False}, "f1", "it was recreated"),
        ({"id": ID, "v": V}, {"table 1": True, "partition 5": False, "partition 6": False}, "f1", None),
        ({"id": ID, "v": V}, {"table 1": True, "partition 5": False, "partition 6": True}, "f1",
         "a table was attached to it as a partition"),
    ],
)
def test_stale_reason_by_catalog_change(
    columns: Mapping[str, ColumnFingerprint], bodies: Mapping[str, bool], file: str, why: str | None
) -> None:
    current = fingerprint(columns, bodies or BEFORE.bodies, file)
    assert stale_reason(SavedFingerprint.from_catalog(BEFORE), current) == why


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase()
    database.create_table(T)
    return database


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path)


def start(database: MemoryDatabase, store: FileProgress, *, auto: bool = True) -> StaleTableDetector:
    """Return the detector of a capture that has just started."""
    detector = StaleTableDetector(MemorySource(database), store, auto=auto)
    detector.apply(MemorySource(database).table_fingerprints(), read_at=time.monotonic())
    return detector


def dumped_tables(store: FileProgress) -> list[str]:
    return [task.table for task in pending_tasks(store)]


def log_row(kind: str, schema_id: str = "", payload: object = None) -> pa.Table:
    row = {"kind": kind, "table": "public.t", "schema_id": schema_id, "payload": json.dumps(payload or {}).encode()}
    return pa.Table.from_pylist([row], schema=CAPTURED)


def test_change_while_stopped_queues_one_dump(database: MemoryDatabase, store: FileProgress) -> None:
    start(database, store)
    assert dumped_tables(store) == []
    database.alter_table(WIDER, {"w": "x"})
    detector = start(database, store)
    assert dumped_tables(store) == ["public.t"]
    assert not detector.scan_catalog()
    start(database, store)
    assert dumped_tables(store) == ["public.t"]


def test_queued_dump_covers_changes_until_it_starts(database: MemoryDatabase, store: FileProgress) -> None:
    detector = start(database, store)
    by_hand = queue_dump(store, ["public.t"])
    queue_dump(store, ["public.t"], keys=[("1",)])
    database.alter_table(WIDER, {"w": "x"})
    assert detector.on_log_rows(log_row(SCHEMA, WIDER.schema_id))
    database.alter_table(T)
    assert not detector.on_log_rows(log_row(SCHEMA, T.schema_id))
    database.alter_table(WIDER, {"w": "y"})
    assert detector.scan_catalog()
    assert dumped_tables(store) == ["public.t", "public.t"]
    assert [(stale.table, stale.dump_id) for stale in read_stale_tables(store)] == [("public.t", by_hand)]
    save_progress(store, pending_tasks(store)[0].start())
    detector.on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    assert len(dumped_tables(store)) == 3
    (stale,) = read_stale_tables(store)
    task = next(task for task in pending_tasks(store) if task.id == stale.dump_id)
    assert task.id != by_hand
    save_progress(store, task.complete())
    detector.scan_catalog()
    assert read_stale_tables(store) == []


def test_dump_for_changed_columns_may_delete_few_rows(database: MemoryDatabase, store: FileProgress) -> None:
    """Only a change that may have removed rows explains that the dump returns fewer; a queued dump is no other one."""
    def detector() -> StaleTableDetector:
        return StaleTableDetector(MemorySource(database), store, auto=True, max_removed=0.1)

    detector().scan_catalog()
    database.alter_table(WIDER, {"w": "x"})
    assert detector().scan_catalog()
    assert [task.request.max_removed for task in pending_tasks(store)] == [0.1]
    detector().on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    assert [task.request.max_removed for task in pending_tasks(store)] == [0.1, None]
    detector().queue_dumps({"public.t": "it was removed"})
    assert [task.request.max_removed for task in pending_tasks(store)] == [0.1, None]


@pytest.mark.parametrize("columns", [
    (Column("id", "integer", False), Column("v", "text", False, 1)),
    (Column("id", "bigint", False, 1), Column("v", "text")),
    (Column("id", "integer", False, 1), Column("v", "text", False, 2)),
])
def test_dump_after_key_change_may_delete_all_rows(
    database: MemoryDatabase, store: FileProgress, columns: tuple[Column, ...]
) -> None:
    """Each row gets another key, and state has one for each of the former ones."""
    def detector() -> StaleTableDetector:
        return StaleTableDetector(MemorySource(database), store, auto=True, max_removed=0.1)

    detector().scan_catalog()
    database.alter_table(TableSchema("public.t", columns), {})
    assert detector().scan_catalog()
    assert [task.request.max_removed for task in pending_tasks(store)] == [None]


def test_repeated_schema_in_log_queues_no_dump(database: MemoryDatabase, store: FileProgress) -> None:
    detector = start(database, store)
    assert not detector.on_log_rows(log_row(SCHEMA, T.schema_id))
    assert not detector.on_log_rows(log_row(DDL, payload={"rewrites": False, "gone": False}))
    assert dumped_tables(store) == []


def test_unreadable_table_is_dumped_once_readable(database: MemoryDatabase, store: FileProgress) -> None:
    lacking = MemoryDatabase()
    assert not start(lacking, store).on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    assert [(stale.table, stale.dump_id) for stale in read_stale_tables(store)] == [("public.t", None)]
    start(database, store)
    assert dumped_tables(store) == ["public.t"]


@pytest.mark.parametrize("then", [log_row(TRUNCATE), log_row(DDL, payload={"rewrites": False, "gone": True})])
def test_truncated_or_renamed_table_is_no_longer_stale(store: FileProgress, then: pa.Table) -> None:
    detector = start(MemoryDatabase(), store)
    detector.on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    detector.on_log_rows(then)
    assert read_stale_tables(store) == []


def test_keyless_stale_table_is_not_dumped(store: FileProgress) -> None:
    database = MemoryDatabase()
    keyless = TableSchema("public.t", (Column("v", "text"),))
    database.create_table(keyless)
    detector = start(database, store)
    assert not detector.on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    assert (dumped_tables(store), read_stale_tables(store)) == ([], [])


def test_stale_table_without_auto_is_only_reported(
    database: MemoryDatabase, store: FileProgress, caplog: pytest.LogCaptureFixture
) -> None:
    detector = start(database, store, auto=False)
    assert not detector.on_log_rows(log_row(DDL, payload={"rewrites": True, "gone": False}))
    database.alter_table(WIDER, {"w": "x"})
    assert not detector.scan_catalog()
    assert dumped_tables(store) == []
    assert [record.message for record in caplog.records] == [
        "table public.t changed without row events: a statement rewrote it, or may have changed its rows. "
        "Next: dump start --table 'public.t'"
    ]


def test_logged_partition_is_kept_until_its_dump_is_queued(
    database: MemoryDatabase, store: FileProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = start(database, store)
    assert detector.note_partitions({"public.t": {"partition 9"}})

    def fail(*_: object, **__: object) -> str:
        raise ProgressUnavailable("the store fails")

    with monkeypatch.context() as patched:
        patched.setattr(dblake.ingest.capture.stale_detector, "queue_dump", fail)
        with pytest.raises(ProgressUnavailable):
            detector.scan_catalog()
    assert StaleTableDetector(MemorySource(database), store, auto=True).scan_catalog()
    assert dumped_tables(store) == ["public.t"]
    assert not StaleTableDetector(MemorySource(database), store, auto=True).scan_catalog()
