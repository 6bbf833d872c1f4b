"""Points as users write them, and which of them events cover."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblake.base.core.errors import PointOutOfRange, UsageError
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.lake.log import Application, record_batch
from dblake.serve.read.points import Point, parse_point
from dblake.serve.read.reading import open_reading
from tests.support.transfers import TABLES, TOTAL, Bank, sum_of, when


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("now", Point("now")),
        ("1/4711", Point("1/4711", Position(1, 4711, Position.MAX))),
        ("2/4711/6", Point("2/4711/6", Position(2, 4711, 6))),
        ("lsn:0/16B3748", Point("lsn:0/16B3748", before=0x16B3748)),
        ("lsn:16/B374D848", Point("lsn:16/B374D848", before=0x16B374D848)),
        ("mysql-bin.000042:1547", Point("mysql-bin.000042:1547", before=42 << 36 | 1547)),
        ("2024-01-31", Point("2024-01-31", time=datetime(2024, 1, 31, tzinfo=UTC))),
        ("2024-01-31T12:00:00.5", Point("2024-01-31T12:00:00.5", time=datetime(2024, 1, 31, 12, 0, 0, 500_000, UTC))),
        ("2024-01-31T12:00+02:00", Point("2024-01-31T12:00+02:00",
                                         time=datetime.fromisoformat("2024-01-31T12:00+02:00"))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_point_parsed_names_position_or_time(text: str, point: Point) -> None:
    assert parse_point(text) == point


@pytest.mark.parametrize("text", ["", "0/1", "1", "1/2/3/4", "1/x", "yesterday", "-1/5"])
def test_point_with_other_text_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is no point"):
        parse_point(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0/16B3748", "write lsn:0/16B3748"),
        ("16/B374D848", "write lsn:16/B374D848"),
        ("23934792", "write 1/23934792"),
        ("lsn:23934792", "write 1/4711"),
        ("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5", "FILE:OFFSET"),
        ("0-1-5", "FILE:OFFSET"),
    ],
)
def test_point_that_looks_like_a_log_place_has_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_point(text)
    assert hint in str(caught.value.next_step)


def test_place_in_the_log_means_transactions_before_it(bank: Bank) -> None:
    places = {f"lsn:0/{50:X}": "1/40/2", f"lsn:0/{51:X}": "1/50/2"}
    assert {text: str(open_reading(bank.paths, text).position) for text in places} == places
    bank.restart()
    bank.transfer()
    bank.land(2)
    bank.reconcile()
    assert str(open_reading(bank.paths, f"lsn:0/{21:X}").position) == "2/20/2"


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """Return a bank with five transfers after the accounts were opened, in transactions 1/10 to 1/120."""
    bank = Bank(tmp_path)
    for _ in range(5):
        bank.transfer()
        bank.land(2)
    bank.reconcile()
    return bank


def test_time_between_commits_means_last_transaction_before(bank: Bank) -> None:
    """The clock of transaction 1/40 is behind: it is included only with the last transaction of an earlier time."""
    times = {lsn: when(lsn) for lsn in range(10, 80, 10)}
    assert times[40] < times[20]
    cases = {times[20]: "1/40/2", times[40]: "1/40/2", times[50]: "1/50/2",
             times[50] - timedelta(microseconds=1): "1/40/2", times[30]: "1/40/2"}
    assert {time: str(open_reading(bank.paths, time.isoformat()).position) for time in cases} == cases
    reading = open_reading(bank.paths, times[50].isoformat())
    assert (sum_of(reading), reading.committed_at) == (TOTAL, times[50])


@pytest.mark.parametrize("text", ["1/9", "1/71", "2/10", "2023-12-31", "2025-01-01"])
def test_point_out_of_range_names_what_can_be_read(bank: Bank, text: str) -> None:
    with pytest.raises(PointOutOfRange) as caught:
        open_reading(bank.paths, text)
    assert str(caught.value).startswith(
        f"{text} cannot be read: the earliest readable point is 1/10/0 (2024-01-01T00:00:10Z), limited by the first "
        "event; the latest is 1/70 (2024-01-01T00:01:10Z), the end of the events"
    )
    assert caught.value.exit_code == 78


def test_point_without_events_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(PointOutOfRange, match="there are no events yet"):
        open_reading(Bank(tmp_path).paths, "1/10")


def test_removed_events_limit_points_to_recorded_ones(bank: Bank) -> None:
    """Before the newest batch of which maintenance removed events, only what state recorded can be read."""
    bank.fold_state()
    record_batch(bank.paths.events, Application.consolidation(bank.paths.source), 4)
    assert sum_of(open_reading(bank.paths, "1/50")) == TOTAL
    with pytest.raises(PointOutOfRange, match=r"earliest readable point is 1/50/2 .*maintain\.events_days"):
        open_reading(bank.paths, "1/40")
    assert sum_of(open_reading(bank.paths, "1/30")) == TOTAL


def test_vacuumed_state_is_folded_from_events(bank: Bank) -> None:
    """State's first versions have lost their files; the same rows follow from events."""
    bank.fold_state()
    before = {lsn: rows(bank, lsn) for lsn in range(20, 80, 10)}
    for table in TABLES:
        path = bank.paths.state(*split_qualified(table))
        DeltaTable(path).optimize.compact()
        DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert {lsn: rows(bank, lsn) for lsn in before} == before
    record_batch(bank.paths.events, Application.consolidation(bank.paths.source), 4)
    with pytest.raises(PointOutOfRange, match=r"maintain\.vacuum_hours"):
        rows(bank, 30)


def test_removed_state_table_is_folded_from_events(bank: Bank) -> None:
    bank.fold_state()
    shutil.rmtree(bank.paths.state(*split_qualified(TABLES[0])))
    assert sum_of(open_reading(bank.paths)) == TOTAL
    assert sum_of(open_reading(bank.paths, "1/50")) == TOTAL


def test_earlier_incarnation_ends_with_its_last_event(bank: Bank) -> None:
    """Behind the last event of an incarnation the log may be missing, so no point there can be read."""
    bank.restart()
    bank.transfer()
    bank.land(2)
    bank.reconcile()
    assert str(open_reading(bank.paths, "1/70").position) == "1/70/2"
    assert str(open_reading(bank.paths, "now").position) == "2/20/2"
    assert sum_of(open_reading(bank.paths, "2/20")) == TOTAL
    with pytest.raises(PointOutOfRange, match="the events of incarnation 1 end with 1/70/2"):
        open_reading(bank.paths, "1/75")


def rows(bank: Bank, lsn: int) -> int:
    return sum_of(open_reading(bank.paths, f"1/{lsn}"))
