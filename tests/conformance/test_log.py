"""The log: transactions in commit order, whole or split over batches, of captured and other tables."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.errors import LandingUnavailable, SourceError
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import LogPiece
from dblake.ingest.capture import log_connection
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.log import MemoryLogStream
from dblake.ingest.source.memory.source import MemorySource
from dblake.landing.table import Landing, Reached
from tests.conformance.script import event_lines
from tests.support.backends import Backend
from tests.support.lake import CaptureLake

T, U, OTHER = "public.t", "public.u", "public.other"


def schema(table: str) -> TableSchema:
    return TableSchema(table, (Column("id", "integer", False, 1), Column("v", "text")))


def create(backend: Backend, *tables: str) -> None:
    for table in tables:
        backend.create(schema(table))


def flags(lake: CaptureLake) -> list[tuple[str, str, bool]]:
    """Return table, key and last_in_txn of every row, in order."""
    return [(row["table"], row["key"]["id"] if row["key"] else "", row["last_in_txn"]) for row in lake.decoded()]


@pytest.mark.parity
def test_transactions_are_in_commit_order(backend: Backend, lake: CaptureLake) -> None:
    create(backend, T)
    source = backend.source("public.*")
    first, second = backend.begin(), backend.begin()
    first.insert(T, {"id": "1", "v": "of the first to begin"})
    second.insert(T, {"id": "2", "v": "of the first to commit"})
    first.insert(T, {"id": "3", "v": None})
    second.commit()
    first.commit()
    lake.capture(source)
    assert event_lines(lake.reconciled()[0], T) == [
        "c 2 of the first to commit", "c 1 of the first to begin", "c 3 None",
    ]
    assert flags(lake) == [(T, "2", True), (T, "1", False), (T, "3", True)]
    txids = [row["txid"] for row in lake.decoded()]
    assert txids[0] > txids[1] == txids[2] if backend.has_txids else txids == [None] * 3


def test_last_in_txn_is_set_on_last_captured_row_only(backend: Backend, lake: CaptureLake) -> None:
    create(backend, T, U, OTHER)
    backend.source("public.*")  # publishes all three
    source = backend.source("public.t", "public.u")
    numbers = itertools.count(1)
    for tables in ([T], [T, U], [U, T, U], [T, OTHER], [OTHER, T, OTHER], [T, U, OTHER, OTHER], [OTHER]):
        with backend.begin() as transaction:
            for table in tables:
                transaction.insert(table, {"id": str(next(numbers)), "v": None})
    lake.capture(source)
    assert flags(lake) == [
        (T, "1", True),
        (T, "2", False), (U, "3", True),
        (U, "4", False), (T, "5", False), (U, "6", True),
        (T, "7", True),
        (T, "10", True),
        (T, "12", False), (U, "13", True),
    ]


def test_truncate_of_two_tables_is_two_rows(backend: Backend, lake: CaptureLake) -> None:
    create(backend, T, U)
    source = backend.source("public.*")
    with backend.begin() as transaction:
        transaction.insert(T, {"id": "1", "v": "a"})
        transaction.insert(U, {"id": "1", "v": "a"})
    with backend.begin() as transaction:
        transaction.truncate(T, U)
        transaction.insert(U, {"id": "2", "v": "b"})
    lake.capture(source)
    events, _ = lake.reconciled()
    assert (event_lines(events, T), event_lines(events, U)) == (["c 1 a", "t"], ["c 1 a", "t", "c 2 b"])
    together = [False, False, True] if backend.truncates_together else [True, True, True]
    assert [last for _, _, last in flags(lake)] == [False, True, *together]
    assert (lake.state(T), lake.state(U)) == ({}, {("2",): {"id": "2", "v": "b"}})


def test_table_without_key_is_captured_but_not_dumped(backend: Backend, lake: CaptureLake) -> None:
    backend.create(TableSchema(T, (Column("id", "integer"), Column("v", "text"))))
    create(backend, U)
    source = backend.source("public.*")
    with backend.begin() as transaction:
        transaction.insert(T, {"id": "1", "v": "a"})
        transaction.update(T, {"id": "1"}, {"v": "b"})
        transaction.delete(T, {"id": "1"})
    lake.dump(T, U)
    lake.capture(source)
    events, _ = lake.reconciled()
    assert [(e.op, e.key, e.after) for e in events] == [
        ("c", None, {"id": "1", "v": "a"}), ("u", None, {"id": "1", "v": "b"}), ("d", None, None),
    ]
    states = {dump["table"]: (dump["state"], dump["error"]) for dump in lake.dumps()}
    assert states == {
        T: ("failed", "table public.t has no primary key, so it cannot be dumped"), U: ("done", None),
    }


def test_excluded_table_lands_no_rows_but_advances_log(backend: Backend, lake: CaptureLake) -> None:
    create(backend, T, OTHER)
    backend.source("public.*")
    source = backend.source("public.*", "!public.other")
    lake.capture(source)
    before = lake.reached.resume.token
    with backend.begin() as transaction:
        transaction.insert(OTHER, {"id": "1", "v": "a"})
    lake.capture(source)
    assert set(lake.landing()["kind"].to_pylist()) == {"heartbeat"}
    assert lake.reached.resume.token != before


def test_heartbeats_release_log_of_other_tables(keeping_backend: Backend, lake: CaptureLake) -> None:
    backend = keeping_backend
    create(backend, T, OTHER)
    source = backend.source("public.t")
    for number in range(20):
        with backend.begin() as transaction:
            transaction.insert(OTHER, {"id": str(number), "v": "x" * 100})
    end = backend.log_end()
    assert backend.confirmed() < end
    lake.capture(source, until=Until(seconds=1.0), heartbeat_seconds=0.2)
    assert backend.confirmed() >= end


class FailingLanding(Landing):
    """A landing table whose storage fails after some commits."""

    def __init__(self, path: str, commits: int) -> None:
        super().__init__(path, "shop")
        self._commits_left = commits

    def commit(self, rows: pa.Table, reached: Reached) -> None:
        self._commits_left -= 1
        if self._commits_left < 0:
            raise LandingUnavailable("storage is gone")
        super().commit(rows, reached)


ROWS = 1500


@pytest.mark.parametrize("limit", [
    {"max_rows": 10}, pytest.param({"max_bytes": 2000}, marks=pytest.mark.slow),
], ids=["rows", "bytes"])
@pytest.mark.parity
def test_transaction_split_over_batches_resumes_inside(
    backend: Backend, lake: CaptureLake, limit: dict[str, Any]
) -> None:
    create(backend, T, OTHER)
    backend.source("public.*")
    source = backend.source("public.t")
    with backend.begin() as transaction:
        for number in range(ROWS):
            transaction.insert(T if number % 2 == 0 else OTHER, {"id": str(number), "v": None})
    with backend.begin() as transaction:
        transaction.insert(T, {"id": str(ROWS), "v": None})
    with pytest.raises(LandingUnavailable):
        lake.capture(source, open_landing=lambda: FailingLanding(lake.paths.landing, 2), **limit)
    half = lake.reached
    assert half.batch == 2
    assert half.resume.landed is not None
    lake.capture(source, **limit)
    assert flags(lake) == [(T, str(n), n in (ROWS - 2, ROWS)) for n in range(0, ROWS + 1, 2)]
    assert lake.reached.resume.landed is None
    assert lake.reached.batch > 3


def test_transaction_split_after_first_row_keeps_it(backend: Backend, lake: CaptureLake) -> None:
    create(backend, T, OTHER)
    backend.source("public.*")
    source = backend.source("public.t")
    with backend.begin() as transaction:
        transaction.insert(T, {"id": "1", "v": "x" * 1000})
        for number in range(600):
            transaction.insert(OTHER, {"id": str(number), "v": None})
        transaction.insert(T, {"id": "2", "v": None})
    with pytest.raises(LandingUnavailable):
        lake.capture(source, open_landing=lambda: FailingLanding(lake.paths.landing, 1), max_bytes=512)
    lake.capture(source, max_bytes=512)
    assert flags(lake) == [(T, "1", False), (T, "2", True)]


class FailingLog(MemorySource):
    """A source whose log opens, and fails as soon as it is read."""

    opened = 0

    def open_log(self, resume: ResumePoint | None, incarnation: int) -> MemoryLogStream:
        stream = super().open_log(resume, incarnation)
        self.opened += 1

        def read(**_: object) -> LogPiece | None:
            raise SourceError("the server stumbles over a row")

        stream.read = read  # type: ignore[method-assign]
        return stream


def test_log_that_fails_after_every_open_ends_capture(lake: CaptureLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_connection, "_MAX_FAILURES", 3)
    database = MemoryDatabase()
    database.create_table(schema(T))
    database.make_slot("shop")
    source = FailingLog(database, name="shop", patterns=["public.*"])
    with pytest.raises(SourceError, match="stumbles over a row"):
        lake.capture(source, until=Until())
    assert source.opened == 4
