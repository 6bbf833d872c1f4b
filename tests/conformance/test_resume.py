"""Stop and resume: capture resumes exactly after the last landed row, or is rejected by name."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dblake.base.core.errors import ExitCode, Fenced, LogWentBack, PositionLost, SourceError, WrongServer
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import HEARTBEAT_ROW
from dblake.base.core.source.heartbeats import chain_heartbeat, heartbeat_name, new_heartbeat_name
from dblake.ingest.capture.local_lease import LocalLease
from dblake.ingest.capture.log_limits import pause_log, resume_log
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from tests.conformance.script import Script, event_lines
from tests.support.backends import WATERMARKS, Backend, MemoryBackend
from tests.support.lake import CaptureLake

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))


@pytest.fixture
def script(backend: Backend) -> Script:
    """Return a script on a table with one row that is not in the log."""
    backend.create(ITEMS)
    script = Script(backend, T)
    script.run(["insert 1 a"])
    backend.source("public.*")
    return script


@pytest.mark.parity
def test_capture_resumes_from_landing_alone(backend: Backend, lake: CaptureLake, script: Script) -> None:
    source = backend.source("public.*")
    lake.dump(T)
    lake.capture(source)
    script.run(["update 1 b", "insert 2 c"])
    lake.capture(source)
    shutil.rmtree(lake.progress)
    script.run(["update 1 d"])
    lake.capture(source)
    lake.capture(source)
    assert event_lines(lake.reconciled()[0], T) == ["r 1 a", "u 1 b", "c 2 c", "u 1 d"]
    assert [dump["state"] for dump in lake.dumps()] == []
    batches = sorted(set(lake.landing()["batch"].to_pylist()))
    assert batches == list(range(1, len(batches) + 1))
    assert lake.reached.lease_epoch == 4


def test_other_server_is_rejected(backend: Backend, lake: CaptureLake, script: Script) -> None:
    lake.capture(backend.source("public.*"))
    before = lake.reached
    with pytest.raises(WrongServer, match="is not the server landing was captured from") as rejected:
        lake.capture(MemorySource(MemoryDatabase(server="another"), name="shop"))
    assert rejected.value.exit_code == ExitCode.CONFIGURATION
    assert lake.reached == before


def test_missing_log_is_a_gap(backend: Backend, lake: CaptureLake, script: Script) -> None:
    source = backend.source("public.*")
    lake.capture(source)
    backend.drop_slot()
    with pytest.raises(PositionLost, match="gap") as lost:
        lake.capture(source)
    assert lost.value.exit_code == ExitCode.CONFIGURATION
    assert "--accept-gap" in str(lost.value)


def test_accepted_gap_starts_incarnation_and_redumps(
    backend: Backend, lake: CaptureLake, script: Script
) -> None:
    source = backend.source("public.*")
    lake.dump(T)
    lake.capture(source)
    script.run(["insert 2 a", "insert 3 a"])
    lake.capture(source)
    script.run(["delete 2", "update 3 b", "insert 4 a"])
    backend.drop_slot()
    lake.capture(source, accept_gap=True)
    assert lake.reached.resume.incarnation == 2
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    assert event_lines(lake.reconciled()[0], T)[-4:] == ["r 1 a", "r 3 b", "r 4 a", "d 2"]
    gaps = [(line.status, line.reason) for line in lake.reconciled()[1] if line.chunk_id == ""]
    assert gaps == [("gap", "the log after incarnation 1 is missing")]
    script.run(["insert 5 a"])
    lake.capture(source, accept_gap=True)
    assert lake.reached.resume.incarnation == 2, "the gap is closed"
    assert event_lines(lake.reconciled()[0], T)[-1] == "c 5 a"
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]


def test_other_server_is_captured_if_gap_is_accepted(lake: CaptureLake) -> None:
    first, second = MemoryBackend(), MemoryBackend()
    second.database.server = "another"
    for backend, rows in ((first, ["insert 1 a", "insert 2 a"]), (second, ["insert 2 b", "insert 3 b"])):
        backend.create(ITEMS)
        Script(backend, T).run(rows)
        backend.source("public.*")
    lake.dump(T)
    lake.capture(first.source("public.*"))
    lake.capture(second.source("public.*"), accept_gap=True)
    assert lake.state(T) == {(row["id"],): row for row in second.rows(T)}
    lake.capture(second.source("public.*"))
    with pytest.raises(WrongServer):
        lake.capture(first.source("public.*"))


def test_heartbeat_of_another_chain_is_rejected(backend: Backend, lake: CaptureLake, script: Script) -> None:
    """A heartbeat that follows another one than the last captured: the log is that of another life of the server."""
    source = backend.source("public.*")
    lake.capture(source)
    before = lake.reached
    script.run(["insert 5 a"])
    set_heartbeat(backend, chain_heartbeat(new_heartbeat_name(), "another"))
    if not backend.has_watermark_rows:
        # Messages name no predecessor; the log that is read again has the captured one (tests/faults/test_restored).
        lake.capture(source, max_rows=1)
        assert event_lines(lake.reconciled()[0], T) == ["c 5 a"]
        return
    with pytest.raises(LogWentBack, match="the log went back") as rejected:
        lake.capture(source, max_rows=1)
    assert rejected.value.exit_code == ExitCode.CONFIGURATION
    assert lake.reached == before, "nothing lands before the history is proved"
    lake.capture(source, accept_gap=True)
    lake.capture(source)
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


def test_heartbeat_set_by_hand_is_passed_over(backend: Backend, lake: CaptureLake, script: Script) -> None:
    source = backend.source("public.*")
    lake.capture(source)
    set_heartbeat(backend, "by hand")
    lake.capture(source)
    assert heartbeat_name(lake.reached.heartbeat) != "by hand"


def test_lakes_that_share_a_database_both_resume(backend: Backend, tmp_path: Path) -> None:
    """Both write to the same heartbeat row; each finds its own last heartbeat in the other one's chain."""
    backend.create(ITEMS)
    script = Script(backend, T)
    sources = backend.source("public.*"), backend.other_slot()
    lakes = CaptureLake(tmp_path / "a"), CaptureLake(tmp_path / "b")
    for key in range(1, 4):
        script.run([f"insert {key} a"])
        for lake, source in zip(lakes, sources, strict=True):
            lake.capture(source)
            assert len(lake.state(T)) == key


def set_heartbeat(backend: Backend, value: str) -> None:
    """Set the value of the heartbeat row as an application would."""
    with backend.begin() as transaction:
        transaction.update(WATERMARKS, {"id": str(HEARTBEAT_ROW)}, {"value": value})


@pytest.mark.parametrize("is_removed", [False, True])
def test_landing_that_lost_rows_of_dump_is_rejected(
    backend: Backend, lake: CaptureLake, script: Script, tmp_path: Path, *, is_removed: bool
) -> None:
    """Progress has the dump as done. A log that the server keeps by age would go on; the dump's rows are missing."""
    source = backend.source("public.*")
    lake.capture(source)
    shutil.copytree(lake.paths.root, tmp_path / "backup")
    script.run(["insert 2 a", "insert 3 a", "insert 4 a"])
    lake.dump(T)
    lake.capture(source, max_rows=1, chunk_size=1)  # many batches
    shutil.rmtree(lake.paths.root)
    if not is_removed:
        shutil.copytree(tmp_path / "backup", lake.paths.root)
    with pytest.raises(PositionLost, match=r"landing ends at batch \d+, and rows of dumps .* a gap"):
        lake.capture(source)
    lake.capture(source, accept_gap=True)
    lake.capture(source)
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}


def test_log_that_starts_after_landing_is_a_gap(backend: Backend, lake: CaptureLake, script: Script) -> None:
    source = backend.source("public.*")
    lake.capture(source)
    script.run(["update 1 b"])
    backend.advance_slot()
    with pytest.raises(PositionLost, match="gap") as lost:
        lake.capture(source)
    assert lost.value.exit_code == ExitCode.CONFIGURATION


def test_taken_slot_is_retryable(keeping_backend: Backend, lake: CaptureLake) -> None:
    backend = keeping_backend
    backend.create(ITEMS)
    source = backend.source("public.*")
    with backend.hold_slot(), pytest.raises(SourceError, match=r"slot.* is in use|taken") as rejected:
        source.open_log(None, 1)
    assert rejected.value.exit_code == ExitCode.TRY_AGAIN
    lake.capture(source)


def test_second_capture_is_rejected_by_lease(backend: Backend, lake: CaptureLake, script: Script) -> None:
    with LocalLease(lake.progress, "shop"), pytest.raises(Fenced, match="another capture holds the lease") as rejected:
        lake.capture(backend.source("public.*"))
    assert rejected.value.exit_code == ExitCode.TRY_AGAIN
    assert not Path(lake.paths.landing).exists()


def test_second_capture_without_lease_is_fenced_by_delta(
    backend: Backend, lake: CaptureLake, script: Script, tmp_path: Path
) -> None:
    source, other = backend.source("public.*"), backend.other_slot()
    lake.capture(source)
    lake.dump(T)
    second = CaptureLake(tmp_path)
    second.store = CaptureLake(tmp_path / "elsewhere").store

    def take_over() -> None:
        second.capture(other, lease=tmp_path / "elsewhere")

    with pytest.raises(Fenced, match="another capture has landed") as rejected:
        lake.capture(source, steps={("low", T): take_over})
    assert rejected.value.exit_code == ExitCode.TRY_AGAIN
    batches = lake.landing()["batch"].to_pylist()
    assert max(batches) == lake.reached.batch


@pytest.mark.parametrize("where", [
    "low", pytest.param("read", marks=pytest.mark.slow), pytest.param("high", marks=pytest.mark.slow),
])
@pytest.mark.parity
def test_broken_connections_lose_and_repeat_no_change(
    backend: Backend, lake: CaptureLake, script: Script, where: str
) -> None:
    source = backend.source("public.*")
    script.run([f"insert {n} x" for n in range(2, 8)])
    lake.dump(T)

    def break_connections() -> None:
        script.run(["update 3 y"])
        backend.cut_connections()
        script.run(["update 4 z"])

    lake.capture(source, steps={(where, T): break_connections}, chunk_size=3, reconnect_seconds=20)
    lines = event_lines(lake.reconciled()[0], T)
    assert sorted(line for line in lines if line[0] in "cu") == [
        *(f"c {n} x" for n in range(2, 8)), "u 3 y", "u 4 z",
    ]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    assert [dump["state"] for dump in lake.dumps()] == ["done"]


def test_stopped_capture_lands_what_it_has_read(
    backend: Backend, lake: CaptureLake, script: Script
) -> None:
    stop = threading.Event()
    source = backend.source("public.*")
    lake.dump(T)

    def write_and_stop() -> None:
        script.run(["insert 2 b"])
        stop.set()

    lake.capture(source, until=Until(), stop=stop, steps={("read", T): write_and_stop})
    assert event_lines(lake.reconciled()[0], T) == ["c 2 b", "r 1 a"]
    assert [dump["rows"] for dump in lake.dumps()] == [1]


@pytest.mark.parity
def test_pause_loses_nothing_when_connections_break(backend: Backend, lake: CaptureLake, script: Script) -> None:
    """A server ends a reader that does not read; a dump that is under way holds its windows open."""
    source, stop = backend.source("public.*"), threading.Event()
    lake.dump(T)

    def break_while_paused() -> None:
        pause_log(lake.store, 60)
        time.sleep(1.2)  # longer than capture applies the limits that it read last
        script.run(["insert 2 b"])
        backend.cut_connections()
        script.run(["update 1 c"])
        resume_log(lake.store)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            lake.capture, source, until=Until(), stop=stop, steps={("read", T): break_while_paused},
            reconnect_seconds=20,
        )
        deadline = time.monotonic() + 30
        while [dump["state"] for dump in lake.dumps()] != ["done"] and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()
        running.result(30)
    lines = event_lines(lake.reconciled()[0], T)
    assert [line for line in lines if line[0] in "cu"] == ["c 2 b", "u 1 c"]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
