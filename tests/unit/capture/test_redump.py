"""Which changes of the catalogue mean that rows changed without row events, and that each is dumped for once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.capture.progress import FileProgress
from dblake.capture.requests import pending, queue_dump, save_progress
from dblake.capture.stale_detector import Known, StaleTableDetector, changed
from dblake.capture.stale_tables import rewritten
from dblake.core.schema import Column, TableSchema
from dblake.core.source import ColumnFingerprint, TableFingerprint
from dblake.landing.columns import CAPTURED, DDL, SCHEMA, TRUNCATE
from dblake.source.memory.database import MemoryDatabase
from dblake.source.memory.source import MemorySource

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
WIDER = TableSchema("public.t", (*T.columns, Column("w", "text")))
ID = ColumnFingerprint("integer key 1", 1, "700")
V = ColumnFingerprint("text key None", 2, "700", labels={"9": "red"})
W = ColumnFingerprint("text key None", 3, "705", blank=True)


def standing(
    columns: Mapping[str, ColumnFingerprint], bodies: Mapping[str, bool] | None = None, file: str = "f1"
) -> TableFingerprint:
    return TableFingerprint(T, columns, bodies or {"table 1": True}, file)


BEFORE = standing({"id": ID, "v": V}, {"table 1": True, "partition 5": False})


@pytest.mark.parametrize(
    ("columns", "bodies", "file", "why"),
    [
        ({"id": ID, "v": V}, {}, "f1", None),
        ({"v": V, "id": ID}, {}, "f2", None),
        ({"id": ID}, {}, "f1", None),
        ({"id": ID, "v": V, "w": W}, {}, "f1", None),
        ({"id": ID, "v": V, "w": W}, {}, "f2", "column w came"),
        ({"id": ID, "v": V, "w": ColumnFingerprint("text key None", 3)}, {}, "f1", "column w came"),
        ({"id": ID, "w": ColumnFingerprint("text key None", 2, "700", blank=True)}, {}, "f1", "column w came"),
        ({"id": ID, "v": ColumnFingerprint("text key None", 3, "705", blank=True)}, {}, "f1",
         "column v is another one, or of another type"),
        ({"id": ID, "v": ColumnFingerprint("bigint key None", 2, "705")}, {}, "f1",
         "column v is another one, or of another type"),
        ({"id": ID, "v": replace(V, labels={"9": "red", "11": "blue"})}, {}, "f1", None),
        ({"id": ID, "v": replace(V, labels={"9": "rot"})}, {}, "f1", "a label of column v was renamed"),
        ({"id": ID, "v": ColumnFingerprint("text key None", 2, "705")}, {}, "f1", None),
        ({"id": ID, "v": ColumnFingerprint("text key None", 2, "705")}, {}, "f2", "its columns were written anew"),
        ({"id": ID, "v": V}, {"table 1": True}, "f1", "a part of it is gone or was written anew"),
        ({"id": ID, "v": V}, {"table 2": True, "partition 5": False}, "f1", "it was made anew"),
        ({"id": ID, "v": V}, {"table 1": True, "partition 5": False, "partition 6": False}, "f1", None),
        ({"id": ID, "v": V}, {"table 1": True, "partition 5": False, "partition 6": True}, "f1",
         "a table was made a part of it"),
    ],
)
def test_what_changed(
    columns: Mapping[str, ColumnFingerprint], bodies: Mapping[str, bool], file: str, why: str | None
) -> None:
    assert changed(Known.of(BEFORE), standing(columns, bodies or BEFORE.bodies, file)) == why


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase()
    database.create_table(T)
    return database


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path)


def watch(database: MemoryDatabase, store: FileProgress, *, auto: bool = True) -> StaleTableDetector:
    """As a capture that starts has it."""
    redumps = StaleTableDetector(MemorySource(database), store, auto=auto)
    redumps.begin()
    return redumps


def asked(store: FileProgress) -> list[str]:
    return [task.table for task in pending(store)]


def said(kind: str, schema_id: str = "", payload: object = None) -> pa.Table:
    row = {"kind": kind, "table": "public.t", "schema_id": schema_id, "payload": json.dumps(payload).encode()}
    return pa.Table.from_pylist([row], schema=CAPTURED)


def test_a_change_found_at_the_start_is_dumped_for_once(database: MemoryDatabase, store: FileProgress) -> None:
    watch(database, store)
    assert asked(store) == []
    database.alter_table(WIDER, {"w": "x"})
    redumps = watch(database, store)
    assert asked(store) == ["public.t"]
    assert not redumps.look()
    watch(database, store)
    assert asked(store) == ["public.t"]


def test_one_dump_does_for_all_changes_until_it_begins(database: MemoryDatabase, store: FileProgress) -> None:
    redumps = watch(database, store)
    by_hand = queue_dump(store, ["public.t"])
    queue_dump(store, ["public.t"], keys=[("1",)])
    database.alter_table(WIDER, {"w": "x"})
    assert redumps.log_says(said(SCHEMA, WIDER.schema_id))
    database.alter_table(T)
    assert not redumps.log_says(said(SCHEMA, T.schema_id))
    database.alter_table(WIDER, {"w": "y"})
    assert redumps.look()
    assert asked(store) == ["public.t", "public.t"]
    assert [(found.table, found.dump_id) for found in rewritten(store)] == [("public.t", by_hand)]
    save_progress(store, pending(store)[0].running())
    redumps.log_says(said(DDL, payload={"rewrites": True, "gone": False}))
    assert len(asked(store)) == 3
    (found,) = rewritten(store)
    task = next(task for task in pending(store) if task.id == found.dump_id)
    assert task.id != by_hand
    save_progress(store, task.done())
    redumps.look()
    assert rewritten(store) == []


def test_what_the_log_repeats_is_no_news(database: MemoryDatabase, store: FileProgress) -> None:
    redumps = watch(database, store)
    assert not redumps.log_says(said(SCHEMA, T.schema_id))
    assert not redumps.log_says(said(DDL, payload={"rewrites": False, "gone": False}))
    assert asked(store) == []


def test_a_table_that_cannot_be_read_yet_is_not_forgotten(database: MemoryDatabase, store: FileProgress) -> None:
    lacking = MemoryDatabase()
    assert not watch(lacking, store).log_says(said(DDL, payload={"rewrites": True, "gone": False}))
    assert [(found.table, found.dump_id) for found in rewritten(store)] == [("public.t", None)]
    watch(database, store)
    assert asked(store) == ["public.t"]


@pytest.mark.parametrize("then", [said(TRUNCATE), said(DDL, payload={"rewrites": False, "gone": True})])
def test_a_table_emptied_or_renamed_since_is_right(store: FileProgress, then: pa.Table) -> None:
    redumps = watch(MemoryDatabase(), store)
    redumps.log_says(said(DDL, payload={"rewrites": True, "gone": False}))
    redumps.log_says(then)
    assert rewritten(store) == []


def test_a_table_without_a_key_is_not_dumped(store: FileProgress) -> None:
    database = MemoryDatabase()
    keyless = TableSchema("public.t", (Column("v", "text"),))
    database.create_table(keyless)
    redumps = watch(database, store)
    assert not redumps.log_says(said(DDL, payload={"rewrites": True, "gone": False}))
    assert (asked(store), rewritten(store)) == ([], [])


def test_only_said(database: MemoryDatabase, store: FileProgress, caplog: pytest.LogCaptureFixture) -> None:
    redumps = watch(database, store, auto=False)
    assert not redumps.log_says(said(DDL, payload={"rewrites": True, "gone": False}))
    database.alter_table(WIDER, {"w": "x"})
    assert not redumps.look()
    assert asked(store) == []
    assert [record.message for record in caplog.records] == [
        "table public.t changed without row events: a statement moved its rows. Next: dump start --table 'public.t'"
    ]
