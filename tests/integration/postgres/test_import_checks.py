"""Imports that cannot be right are rejected by name: too early, too late, outdated, or of other columns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.errors import DblakeError, PointOutOfRange, PrerequisitesNotMet
from dblake.base.core.source import Source
from dblake.ingest.capture.dump_queue import pending_tasks, set_control
from dblake.ingest.capture.dump_task import DumpControl
from dblake.ingest.capture.stale_tables import StaleTable, delete_stale_table, read_stale_tables, save_stale_table
from dblake.ingest.capture.table_life import LifeState, read_lives, save_life
from tests.model.dblog import High
from tests.support.backends import PostgresBackend
from tests.support.exports import Export, export, queue_import
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"


class Place:
    """A followed table with three rows, and files of it."""

    def __init__(self, backend: PostgresBackend, folder: Path) -> None:
        self.backend, self.lake, self.folder = backend, CaptureLake(folder), folder
        backend.run("CREATE TABLE t (id int PRIMARY KEY, v text)",
                    "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3) n")
        self.source: Source = backend.source("public.*")
        self.capture()

    def capture(self) -> None:
        self.lake.capture(self.source, redump=False)

    def export(self) -> Export:
        taken = export(self.backend, T, self.folder / "rows")
        self.capture()
        return taken

    def reject(self, taken: Export, error: type[DblakeError], message: str, *, replaces: bool = False,
               landing_days: int | None = None) -> None:
        with pytest.raises(error, match=message):
            queue_import(self.lake, self.source, T, taken, replaces=replaces, landing_days=landing_days)
        assert all(task.request.imported is None for task in pending_tasks(self.lake.store))


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    backend = PostgresBackend(database)
    yield Place(backend, tmp_path)
    backend.close()


def moved(taken: Export, at: str) -> Export:
    return replace(taken, files=replace(taken.files, at=at))


def test_position_without_whole_log_is_rejected(place: Place) -> None:
    taken = place.export()
    place.reject(moved(taken, "0/1"), PointOutOfRange, "earlier than the log in landing")
    place.reject(moved(taken, "FFFF/0"), PointOutOfRange, "later than what capture has landed")
    place.reject(taken, PointOutOfRange, "longer ago than half of maintain.landing_days", landing_days=0)
    life = read_lives(place.lake.store)[T]
    save_life(place.lake.store, replace(life, since="2100-01-01T00:00:00Z"))
    place.reject(taken, PointOutOfRange, "position is earlier than 2100-01-01.*when capture began to follow it")
    save_life(place.lake.store, replace(life, state=LifeState.SUSPENDED, reason="row_security"))
    place.reject(taken, PrerequisitesNotMet, "is suspended: row_security")


def test_files_older_than_dump_are_rejected(place: Place) -> None:
    taken = place.export()
    place.lake.dump(T)
    place.reject(taken, PrerequisitesNotMet, "of it is not finished")
    for _ in range(2):
        place.capture()
    place.reject(taken, PrerequisitesNotMet, "has its rows already")
    place.reject(taken, PrerequisitesNotMet, "a dump has read rows of it that are newer", replaces=True)


def test_files_older_than_changes_without_events_are_rejected(place: Place) -> None:
    place.backend.run("UPDATE t SET v = 'b' WHERE id = 1")
    taken = place.export()
    save_stale_table(place.lake.store, StaleTable(T, "it was rewritten"))
    place.reject(taken, PrerequisitesNotMet, "its rows changed without row events: it was rewritten")
    delete_stale_table(place.lake.store, T)
    place.backend.run("ALTER TABLE t ALTER v TYPE varchar(50)", "INSERT INTO t VALUES (4, 'b')")
    place.capture()
    place.reject(taken, PrerequisitesNotMet, "changed without row events: column v")
    delete_stale_table(place.lake.store, T)
    place.reject(taken, PrerequisitesNotMet, "a statement altered it or its rows")


def test_import_fails_by_name_after_it_was_queued(place: Place) -> None:
    """Capture finds what the command could not: another schema, a file that is gone or cut off."""
    taken = place.export()
    file = place.folder / "rows"
    whole = file.read_bytes()
    queue_import(place.lake, place.source, T, taken)
    file.write_bytes(whole[:-1])
    place.capture()
    queue_import(place.lake, place.source, T, taken)
    file.unlink()
    place.capture()
    file.write_bytes(whole)
    queue_import(place.lake, place.source, T, taken)
    place.backend.run("ALTER TABLE t ALTER v SET NOT NULL")
    place.capture()
    cut_off, gone, altered = (dump["error"] or "" for dump in place.lake.dumps())
    assert "it is cut off" in cut_off
    assert "does not exist where capture runs" in gone
    assert "changed its columns, types or key since the import was queued" in altered


def test_failed_import_is_repeated(place: Place) -> None:
    taken = place.export()
    file = place.folder / "rows"
    whole = file.read_bytes()
    file.write_bytes(whole + b"4\tnot in the table\n5\n")
    queue_import(place.lake, place.source, T, taken)
    place.lake.capture(place.source, chunk_size=2, redump=False)
    file.write_bytes(whole)
    place.backend.run("DELETE FROM t WHERE id = 3")
    queue_import(place.lake, place.source, T, taken)
    place.capture()
    assert [dump["state"] for dump in place.lake.dumps()] == ["failed", "done"]
    assert set(place.lake.state(T)) == {("1",), ("2",)}


def test_change_unseen_by_snapshot_survives_import(place: Place) -> None:
    """A commit may precede the position in the log, and be newer than the files: visibility decides."""
    taken = place.export()
    place.backend.run("UPDATE t SET v = 'b' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    later = export(place.backend, T, place.folder / "later")
    place.capture()
    queue_import(place.lake, place.source, T, moved(taken, later.files.at))
    place.capture()
    assert {key: row["v"] for key, row in place.lake.state(T).items()} == {("1",): "b", ("3",): "a"}


def test_import_completes_table(place: Place) -> None:
    """The table counts as complete, and its automatic dump, which was cancelled, as made up for."""
    place.lake.capture(place.source, redump=False)
    save_stale_table(place.lake.store, StaleTable(T, "it is new", "20200101-000000-000-0000"))
    queue_import(place.lake, place.source, T, place.export())
    for _ in range(2):
        place.capture()
    assert read_lives(place.lake.store)[T].state is LifeState.FOLLOWED
    assert read_stale_tables(place.lake.store) == []


def test_import_fails_once_another_dump_is_queued(place: Place) -> None:
    """The dump reads rows that are newer than the files. It waits for the chunk of files that is being read."""
    imported, other = queue_import(place.lake, place.source, T, place.export()), ""

    def queue_other() -> None:
        nonlocal other
        other = place.lake.dump(T)
        time.sleep(3)  # capture reads the queue every two seconds

    place.lake.capture(place.source, chunk_size=2, readers=2, redump=False, steps={("read", T): queue_other})
    failed, done = place.lake.dumps()
    assert (failed["id"], failed["state"], done["id"], done["state"]) == (imported, "failed", other, "done")
    assert failed["error"].startswith(f"dump {other} of its table was queued beside it")
    ends = [record for record in place.lake.landed_records() if isinstance(record, High)]
    assert [end.end.dump_id for end in sorted(ends, key=lambda end: end.position)][:2] == [imported, other]


@pytest.mark.parametrize(("redump", "paused"), [(False, True), (True, True), (True, False)])
def test_import_fails_once_its_table_is_stale(place: Place, *, redump: bool, paused: bool) -> None:
    """Rows change without row events while it waits: the log cannot correct the files, only a dump can."""
    queue_import(place.lake, place.source, T, place.export())
    (task,) = pending_tasks(place.lake.store)
    set_control(place.lake.store, task.request, DumpControl.PAUSE if paused else DumpControl.RUN)
    place.backend.run("ALTER TABLE t ALTER v TYPE text USING v || '!'")
    place.lake.capture(place.source, redump=redump)
    if not redump:
        set_control(place.lake.store, task.request, DumpControl.RUN)
        place.capture()
    failed, *others = place.lake.dumps()
    assert (failed["id"], failed["state"], [other["state"] for other in others]) == (
        task.id, "failed", ["done"] if redump else []
    )
    reason = "was queued beside it" if redump else "its rows changed without row events since it was queued"
    assert reason in failed["error"]
    assert [row["v"] for row in place.lake.state(T).values()] == (["a!"] * 3 if redump else [])
