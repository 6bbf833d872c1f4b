"""Capture while its lease is uncertain, and once it is lost: another process may lead, so nothing more may land."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dblake.base.core.errors import Fenced
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.tables import has_table
from dblake.ingest.capture.activity import read_activity
from dblake.ingest.capture.loop import Landed, Until
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from tests.support.lake import CaptureLake
from tests.support.leases import RevocableLease

T = "public.t"


class Captured:
    """A database with one table, its running capture, and the capture's lease."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.lease = CaptureLake(folder), RevocableLease(folder, "shop")
        self.capture: Future[Landed] = Future()
        self._database = MemoryDatabase()
        self._database.create_table(TableSchema(T, (Column("id", "integer", False, 1),)))
        self._database.make_slot("shop")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run capture inside the block."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            self.capture = pool.submit(self.lake.capture, self.source(), until=Until(), stop=stop, lease=self.lease)
            try:
                yield
            finally:
                stop.set()

    def source(self) -> MemorySource:
        """Return a new connection to the database."""
        return MemorySource(self._database, name="shop", patterns=["public.*"])

    def insert(self, key: int) -> None:
        with self._database.begin() as transaction:
            transaction.insert(T, {"id": str(key)})

    def rows(self) -> int:
        """Return how many rows of the log have landed."""
        return self.lake.landing()["kind"].to_pylist().count("row") if has_table(self.lake.paths.landing) else 0


def becomes_true(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def insert_while_uncertain(captured: Captured) -> None:
    """Land one row, then insert a second one while the lease is uncertain."""
    captured.insert(1)
    assert becomes_true(lambda: captured.rows() == 1)
    captured.lease.is_certain = False
    captured.insert(2)


def test_capture_reports_itself_for_status(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    captured = Captured(tmp_path)
    with caplog.at_level("INFO", "dblake.ingest.capture"), captured.running():
        becomes_true(lambda: (found := read_activity(captured.lake.store)) is not None and found.has_caught_up)
        running = read_activity(captured.lake.store)
        assert running is not None
        assert (running.tables, running.is_running(), running.ended_at) == (1, True, None)
    captured.capture.result(30)
    ended = read_activity(captured.lake.store)
    assert ended is not None
    assert (ended.since, ended.is_running()) == (running.since, False)
    assert "capture of shop starts: 1 tables, log from where it begins, lease epoch 1" in caplog.messages


def test_uncertain_lease_delays_landing(tmp_path: Path) -> None:
    captured = Captured(tmp_path)
    with captured.running():
        insert_while_uncertain(captured)
        time.sleep(0.5)
        assert captured.rows() == 1
        captured.lease.is_certain = True
        assert becomes_true(lambda: captured.rows() == 2)


def test_lost_lease_ends_capture_before_landing(tmp_path: Path) -> None:
    captured = Captured(tmp_path)
    with captured.running():
        insert_while_uncertain(captured)
        captured.lease.why_lost = "its session has ended"
        with pytest.raises(Fenced, match="capture of shop lost its lease: its session has ended"):
            captured.capture.result(timeout=20)
        assert captured.rows() == 1
