"""Changes in and around a chunk window, and the events they result in.

All cases of a source run in one capture, each in its own table, chunk by chunk beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.serve.read.reading import LakeReading, open_reading
from dblake.serve.read.rows import read_rows
from tests.conformance.conftest import KINDS, empty_backend
from tests.conformance.script import Script, event_lines
from tests.model.dblog import Event, LedgerRow, Low, fold
from tests.support.backends import Backend, StandbyBackend
from tests.support.lake import CaptureLake

# One capture per source runs all cases, so the whole module is cheap enough for every database.
pytestmark = pytest.mark.parity


@dataclass(frozen=True)
class Case:
    """The changes at each step of a window, and the expected events.

    The table contains ``1 a`` and ``2 b``. ``start`` comes before the low watermark, ``low`` between it and the read,
    ``read`` between the read and the high watermark, ``high`` after that.
    """

    name: str
    expected: list[str]
    start: list[str] | None = None
    low: list[str] | None = None
    read: list[str] | None = None
    high: list[str] | None = None
    discarded: str | None = None
    """Why the chunk is discarded and read again, on servers with ``Outcome.discards_overwritten``."""


CASES = [
    Case("nothing happens", ["r 1 a", "r 2 b"]),
    Case("an update before the low watermark", ["u 1 x", "r 1 x", "r 2 b"], start=["update 1 x"]),
    Case("an update between low watermark and read", ["u 1 x", "r 2 b"], low=["update 1 x"]),
    Case("an update between read and high watermark", ["u 1 x", "r 2 b"], read=["update 1 x"]),
    Case("an update after the high watermark", ["r 1 a", "r 2 b", "u 1 x"], high=["update 1 x"]),
    Case("an insert before the read", ["c 3 c", "r 1 a", "r 2 b"], low=["insert 3 c"]),
    Case("an insert after the read", ["c 3 c", "r 1 a", "r 2 b"], read=["insert 3 c"]),
    Case("a delete before the read", ["d 1", "r 2 b"], low=["delete 1"]),
    Case("a delete after the read", ["d 1", "r 2 b"], read=["delete 1"]),
    Case("a delete and the insert of the same key after the read", ["d 1", "c 1 z", "r 2 b"],
         read=["delete 1", "insert 1 z"]),
    Case("a delete before and an insert after the read", ["d 1", "c 1 z", "r 2 b"], low=["delete 1"],
         read=["insert 1 z"]),
    Case("a key change after the read evicts both keys", ["d 1", "c 9 a", "r 2 b"], read=["rekey 1 9"]),
    Case("a key change before the read evicts both keys", ["d 1", "c 9 a", "r 2 b"], low=["rekey 1 9"]),
    Case("a key that moves onto one just freed", ["d 2", "d 1", "c 2 a"], read=["delete 2", "rekey 1 2"]),
    Case("changed rows before the low watermark, committed before the read", ["u 1 x", "r 2 b"],
         start=["T1 update 1 x"], low=["T1 commit"]),
    Case("changed rows before the low watermark, committed after the read", ["u 1 x", "r 2 b"],
         start=["T1 update 1 x"], read=["T1 commit"]),
    Case("changed rows before the low watermark, committed after the high one", ["r 1 a", "r 2 b", "u 1 x"],
         start=["T1 update 1 x"], high=["T1 commit"]),
    Case("a transaction rolled back in the window", ["r 1 a", "r 2 b"], start=["T1 update 1 x"],
         read=["T1 rollback"]),
    Case("transaction ids in another order than commits", ["u 2 y", "u 1 x"],
         start=["T1 update 1 x", "T2 update 2 y"], low=["T2 commit"], read=["T1 commit"]),
    Case("a truncate before the read drops all that was read", ["t", "c 3 c"], low=["truncate", "insert 3 c"]),
    Case("a truncate after the read", ["t", "c 3 c"], read=["truncate", "insert 3 c"]),
    Case("a truncate after the high watermark", ["r 1 a", "r 2 b", "t", "c 3 c"], high=["truncate", "insert 3 c"]),
    Case("another reader's watermark updated by hand", ["r 1 a", "r 2 b"], low=["mark 2 stray"], read=["mark 2 stray"]),
    Case("another reader's watermark made NULL by hand", ["r 1 a", "r 2 b"], low=["mark 2 NULL"]),
    Case("the heartbeat's row made NULL by hand", ["r 1 a", "r 2 b"], low=["mark 0 NULL"]),
    Case("this reader's watermark updated by hand after the read", ["u 1 x", "r 2 b"],
         read=["mark 1 stray", "update 1 x"]),
    Case("the low watermark replayed after the read does not restart the window", ["u 1 x", "r 2 b"],
         low=["update 1 x"], read=["replay 1"]),
    Case("the high watermark replayed", ["r 1 a", "r 2 b", "u 1 x"], high=["update 1 x", "replay 1"]),
    Case("this reader's watermark updated by hand before the read: not the row this chunk wrote",
         ["r 1 a", "r 2 b"], low=["mark 1 stray"],
         discarded="the chunk was read elsewhere than its watermark was written"),
]


def table_of(case: Case) -> str:
    return f"public.case_{CASES.index(case)}"


@dataclass(frozen=True)
class Outcome:
    """The events, the window ledger, a live reading of landing alone and the source's rows after all cases."""

    events: list[Event]
    ledger: dict[str, list[LedgerRow]]
    live: LakeReading
    truth: dict[str, list[dict[str, Any]]]
    discards_overwritten: bool
    """False where a low watermark is not overwritten (messages), or is waited for before the read (a standby)."""


@pytest.fixture(scope="module", params=KINDS)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    with empty_backend(request) as backend:
        yield run_all(backend, tmp_path_factory.mktemp("windows"))


def run_all(backend: Backend, folder: Path) -> Outcome:
    lake = CaptureLake(folder)
    scripts = {case.name: Script(backend, table_of(case)) for case in CASES}
    for case in CASES:
        backend.create(TableSchema(table_of(case), (Column("id", "integer", False, 1), Column("v", "text"))))
        scripts[case.name].run(["insert 1 a", "insert 2 b"])
    source = backend.source("public.*")
    for case in CASES:
        scripts[case.name].run(case.start or [])
    lake.dump(*map(table_of, CASES))
    steps = {
        (where, table_of(case)): lambda case=case, lines=lines: scripts[case.name].run(lines)
        for case in CASES
        for where, lines in (("low", case.low), ("read", case.read), ("high", case.high))
        if lines
    }
    lake.capture(source, steps=steps, chunk_size=10)
    assert [dump["state"] for dump in lake.dumps()] == ["done"] * len(CASES)
    events, closed = lake.reconciled()
    tables = {low.chunk_id: low.table for low in lake.landed_records() if isinstance(low, Low)}
    ledger: dict[str, list[LedgerRow]] = {}
    for line in closed:
        ledger.setdefault(tables[line.chunk_id], []).append(line)
    live = open_reading(lake.paths, is_live=True)
    truth = {table_of(case): backend.rows(table_of(case)) for case in CASES}
    discards_overwritten = backend.has_watermark_rows and not isinstance(backend, StandbyBackend)
    return Outcome(events, ledger, live, truth, discards_overwritten)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_window_case_gives_expected_events(outcome: Outcome, case: Case) -> None:
    assert event_lines(outcome.events, table_of(case)) == case.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_window_case_gives_state_of_source(outcome: Outcome, case: Case) -> None:
    rows = {key: row for (table, key), row in fold(outcome.events).items() if table == table_of(case)}
    assert rows == {(row["id"],): row for row in outcome.truth[table_of(case)]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_window_case_live_reading_equals_source(outcome: Outcome, case: Case) -> None:
    """Nothing is reconciled: the reading decodes landing and evaluates the windows itself."""
    rows = [row for part in read_rows(outcome.live.table(table_of(case))) for row in part.to_pylist()]
    truth = [{"id": int(row["id"]), "v": row["v"]} for row in outcome.truth[table_of(case)]]
    assert sorted(rows, key=lambda row: row["id"]) == sorted(truth, key=lambda row: row["id"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_window_case_gives_expected_ledger(outcome: Outcome, case: Case) -> None:
    discarded = [("discarded", case.discarded)] if case.discarded and outcome.discards_overwritten else []
    ledger = sorted((line.status, line.reason) for line in outcome.ledger[table_of(case)])
    # One chunk has the rows, another ends the table.
    assert ledger == [("closed", None), ("closed", None), *discarded]
