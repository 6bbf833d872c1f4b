"""Table lives: what a catalog scan makes of each table, and which rows of suspended tables land."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ColumnFingerprint, TableFingerprint, UnfitTable
from dblake.ingest.capture.catalog_scan import CatalogScan
from dblake.ingest.capture.dump_queue import dump_status, pending_tasks, queue_dump, save_progress
from dblake.ingest.capture.dump_task import TABLE_SUSPENDED, DumpTask
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.lifecycle import Lifecycle
from dblake.ingest.capture.settings import NewTables
from dblake.ingest.capture.stale_detector import StaleTableDetector
from dblake.ingest.capture.stale_tables import StaleTable, read_stale_tables, save_stale_table
from dblake.ingest.capture.table_life import missing_rows, read_lives
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.landing.columns import CAPTURED, DDL, ROW, SCHEMA, TRUNCATE
from dblake.landing.control import DumpStart

T = "public.t"
KEYED = TableSchema(T, (Column("id", "integer", False, 1),))
KEYLESS = TableSchema(T, (Column("id", "integer"),))
LOG = count(7)
"""The end of the log: it grows."""
NO_LOG, NO_DUMP = UnfitTable("row filter"), UnfitTable("privilege", has_log=True)


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path)


class Capture:
    """The lifecycle of one run of capture."""

    def __init__(self, store: FileProgress, new_tables: NewTables = "dump") -> None:
        self.store = store
        self.detector = StaleTableDetector(MemorySource(MemoryDatabase()), store, auto=True)
        self.lifecycle = Lifecycle(store, self.detector, new_tables, lambda: f"1/{next(LOG)}")

    def scan(self, *tables: TableSchema, unfit: Mapping[str, UnfitTable] | None = None) -> bool:
        prints = [
            TableFingerprint(t, {c.name: ColumnFingerprint(c.type) for c in t.columns})
            for t in tables if t.table not in (unfit or {})
        ]
        queued = self.lifecycle.apply(CatalogScan(time.monotonic(), {t.table for t in tables}, unfit or {}, prints))
        self.detector.apply(prints, read_at=time.monotonic())
        return queued

    @property
    def state(self) -> str:
        return read_lives(self.store)[T].state.value

    def finish_dump(self) -> None:
        (task,) = pending_tasks(self.store)
        save_progress(self.store, dumped(task, next(LOG)).complete())
        self.scan(KEYED)


def dumped(task: DumpTask, low: int) -> DumpTask:
    """Return a task whose only chunk was read at a position."""
    return task.start().split_at([]).add_chunk(0, 1, None, done=True, began=DumpStart(1, low, 0))


def followed(store: FileProgress) -> Capture:
    capture = Capture(store)
    assert capture.scan(KEYED)
    assert capture.state == "pending"
    capture.finish_dump()
    assert capture.state == "followed"
    return capture


def test_suspension_without_log_requires_dump(store: FileProgress) -> None:
    capture = followed(store)
    end = next(LOG)
    capture.scan(KEYED, unfit={T: NO_LOG})
    assert (capture.state, capture.lifecycle.suspended) == ("suspended", {T: "row filter"})
    assert Position.parse(read_lives(store)[T].position) > Position(1, end)
    # Another reason does not bring back the log in between.
    capture.scan(KEYED, unfit={T: NO_DUMP})
    assert capture.scan(KEYED)
    assert (capture.state, len(dump_status(store))) == ("pending", 2)
    capture.finish_dump()
    assert capture.state == "followed"


def test_suspension_with_log_requires_no_dump(store: FileProgress) -> None:
    capture = followed(store)
    capture.scan(KEYED, unfit={T: NO_DUMP})
    assert capture.state == "suspended"
    assert not Capture(store).scan(KEYED)
    assert (capture.state, len(dump_status(store))) == ("followed", 1)


def test_unfit_first_dump_is_queued_once_fit(store: FileProgress) -> None:
    capture = Capture(store)
    assert not capture.scan(KEYED, unfit={T: NO_DUMP})
    assert (capture.state, dump_status(store)) == ("suspended", [])
    assert capture.scan(KEYED)
    assert capture.state == "pending"


@pytest.mark.parametrize("max_removed", [None, 0.1])
def test_dump_queued_before_capture_is_the_first(store: FileProgress, max_removed: float | None) -> None:
    """``dump start`` before the first capture: the table is dumped once, also with the limit that it has by default."""
    dump_id = queue_dump(store, [T], max_removed=max_removed)
    capture = Capture(store)
    capture.scan(KEYED)
    assert [(dump["id"], dump["state"]) for dump in dump_status(store)] == [(dump_id, "queued")]
    assert [stale.dump_id for stale in read_stale_tables(store)] == [dump_id]
    capture.finish_dump()
    assert capture.state == "followed"


def test_limited_dump_is_not_that_of_returning_table(store: FileProgress) -> None:
    """Rows may have been deleted while it was suspended, however many: no limit may keep them."""
    capture = followed(store)
    capture.scan(KEYED, unfit={T: NO_LOG})
    queue_dump(store, [T], max_removed=0.1)
    capture.scan(KEYED)
    assert [task.request.max_removed for task in pending_tasks(store)] == [0.1, None]


def test_failed_first_dump_leaves_table_incomplete(store: FileProgress) -> None:
    capture = Capture(store)
    capture.scan(KEYED)
    (task,) = pending_tasks(store)
    save_progress(store, task.start().fail("a page of it is damaged"))
    capture.scan(KEYED)
    assert missing_rows(read_lives(store)) == {T: "incomplete: a page of it is damaged"}


def test_dump_that_met_suspension_is_queued_again(store: FileProgress) -> None:
    """A reader may take the dump at the moment at which the log suspends the table once more."""
    capture = Capture(store)
    capture.scan(KEYED)
    (task,) = pending_tasks(store)
    save_progress(store, task.start().fail(f"{TABLE_SUSPENDED}: the log does not name its columns"))
    assert capture.scan(KEYED)
    assert (capture.state, len(pending_tasks(store))) == ("pending", 1)
    capture.finish_dump()
    assert capture.state == "followed"


@pytest.mark.parametrize(("new_tables", "state"), [("ask", "pending"), ("ignore", "pending")])
def test_complete_table_returns_with_dump_always(store: FileProgress, new_tables: NewTables, state: str) -> None:
    followed(store)
    capture = Capture(store, new_tables)
    capture.scan(KEYED, unfit={T: NO_LOG})
    assert capture.scan(KEYED)
    assert capture.state == state


def test_tables_of_earlier_versions_count_as_followed(store: FileProgress) -> None:
    """They have a fingerprint and no life; a redump of all tables after an upgrade would be a surprise."""
    detector = StaleTableDetector(MemorySource(MemoryDatabase()), store, auto=True)
    detector.apply([TableFingerprint(KEYED, {"id": ColumnFingerprint("integer")})], read_at=time.monotonic())
    capture = Capture(store)
    assert not capture.scan(KEYED)
    assert capture.state == "followed"


def test_table_that_lost_its_key_becomes_incomplete_on_return(store: FileProgress) -> None:
    capture = followed(store)
    capture.scan()
    assert capture.state == "removed"
    assert not capture.scan(KEYLESS)
    assert capture.state == "incomplete"


def test_rejected_rows_suspend_until_next_scan(store: FileProgress) -> None:
    capture = followed(store)
    capture.lifecycle.reject({T: "a change was logged as a statement"})
    assert capture.state == "suspended"
    assert capture.scan(KEYED)
    assert capture.state == "pending"


class HidingCapture(Capture):
    """Capture of a database that hides tables from the role, and whose log shows every drop."""

    def __init__(self, store: FileProgress) -> None:
        super().__init__(store)
        source = MemorySource(MemoryDatabase())
        source.schema_changes_in_log = True
        self.detector = StaleTableDetector(source, store, auto=True)
        self.lifecycle = Lifecycle(store, self.detector, "dump", lambda: "1/7")

    def log(self, kind: str, table: str | None = T, **statement: object) -> None:
        payload = json.dumps(statement).encode()
        self.lifecycle.on_log_rows(pa.Table.from_pylist([{"kind": kind, "table": table, "payload": payload}]))


@pytest.mark.parametrize(("logged", "state"), [
    ([], "suspended"), ([(TRUNCATE, T, {"gone": False})], "suspended"), ([(TRUNCATE, T, {"gone": True})], "removed"),
    ([(DDL, T, {"gone": True})], "removed"), ([(DDL, None, {"dropped_schema": "public"})], "removed"),
    ([(DDL, None, {"dropped_schema": "other"})], "suspended"),
    ([(TRUNCATE, T, {"gone": True}), (SCHEMA, T, {})], "suspended"),
])
def test_vanished_table_is_removed_if_log_drops_it(
    store: FileProgress, logged: list[tuple[str, str | None, dict[str, object]]], state: str
) -> None:
    followed(store)
    capture = HidingCapture(store)
    capture.scan(KEYED)
    for kind, table, statement in logged:
        capture.log(kind, table, **statement)
    capture.scan()
    assert capture.state in ("followed", state)
    for _ in range(2):
        capture.scan()
        assert capture.state == state


def test_stale_table_returns_with_dump(store: FileProgress) -> None:
    """Its dump was due while it was suspended, and failed."""
    capture = followed(store)
    save_stale_table(store, StaleTable(T, "a statement moved its rows", "1"))
    capture.scan(KEYED, unfit={T: NO_DUMP})
    assert capture.scan(KEYED)
    assert (capture.state, len(pending_tasks(store))) == ("pending", 1)


def test_name_given_for_a_moment_leaves_no_stale_table(store: FileProgress) -> None:
    """The log shows a table of that name, and a rename back follows before any scan of the catalog."""
    capture = followed(store)
    save_stale_table(store, StaleTable("public.moment", "it was renamed", "1"))
    capture.scan(KEYED)
    assert read_stale_tables(store) == []
    assert capture.state == "followed"


def test_unsupported_table_has_not_vanished(store: FileProgress) -> None:
    """A scan's tables do not include it."""
    followed(store)
    capture = HidingCapture(store)
    capture.scan(KEYED)
    for _ in range(2):
        capture.lifecycle.apply(CatalogScan(time.monotonic(), frozenset(), {T: NO_LOG}, ()))
        assert capture.lifecycle.suspended == {T: "row filter"}


def rows(*cells: tuple[str, str | None, int, bool]) -> pa.Table:
    return pa.Table.from_pylist([
        {"incarnation": 1, "kind": kind, "table": table, "lsn": lsn, "seq": seq, "last_in_txn": last}
        for seq, (kind, table, lsn, last) in enumerate(cells)
    ], schema=CAPTURED)


def test_rows_of_suspended_table_do_not_land(store: FileProgress) -> None:
    """Its schemas do, because the log declares each once; transactions keep a last row."""
    capture = followed(store)
    log = rows(
        (ROW, "public.u", 1, False), (ROW, T, 1, True), (SCHEMA, T, 2, False), (ROW, T, 2, True),
        (DDL, None, 3, True), (ROW, "public.u", 4, False), (SCHEMA, T, 4, False), (ROW, T, 4, False),
    )
    assert capture.lifecycle.without_suspended(log) is log
    capture.scan(KEYED, unfit={T: NO_DUMP})
    assert capture.lifecycle.without_suspended(log) is log
    capture.scan(KEYED, unfit={T: NO_LOG})
    kept = capture.lifecycle.without_suspended(log).to_pylist()
    assert [(row["kind"], row["table"], row["lsn"], row["last_in_txn"]) for row in kept] == [
        (ROW, "public.u", 1, True), (SCHEMA, T, 2, False), (DDL, None, 3, True), (ROW, "public.u", 4, False),
        (SCHEMA, T, 4, False),
    ]
    empty = capture.lifecycle.without_suspended(rows((ROW, T, 1, True)))
    assert empty.num_rows == 0


@pytest.mark.parametrize(
    ("clock", "low", "expected"),
    [("2001-01-01T00:00:00.000000Z", 1, "followed"), ("2999-01-01T00:00:00.000000Z", -1, "incomplete")],
    ids=["behind", "ahead"],
)
def test_dump_completes_table_by_position(store: FileProgress, clock: str, low: int, expected: str) -> None:
    """The dump began just after, or before, the table became incomplete; its machine's clock differs by years."""
    capture = Capture(store, "ask")
    capture.scan(KEYED)
    assert capture.state == "incomplete"
    queue_dump(store, [T])
    (task,) = pending_tasks(store)
    done = dumped(task, Position.parse(read_lives(store)[T].position).lsn + low).complete()
    save_progress(store, replace(done, progress=replace(done.progress, started_at=clock)))
    capture.scan(KEYED)
    assert capture.state == expected
