"""A sum over two tables is the same in every reading, while transfers, state and compaction run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblake.base.core.names import split_qualified
from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.log import Application
from dblake.serve.read.points import NOW
from dblake.serve.read.reading import open_reading
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state.events import split_tables
from dblake.transform.state.fold import NEEDED
from dblake.transform.state.merge import Slice, merge_slice
from tests.support.effort import EFFORT
from tests.support.transfers import SCHEMA_OF, TABLES, TOTAL, Bank, sum_of, when


def sum_of_newest_versions(bank: Bank) -> int:
    """Return the sum as a reader sees it that knows no frontier."""
    return sum(
        sum(DeltaTable(bank.paths.state(*split_qualified(table))).to_pyarrow_table()["amount"].to_pylist())
        for table in TABLES
    )


def merge_first_table_only(bank: Bank) -> None:
    """Do what a state run does that dies after its first table."""
    events, done = EventReader.open(bank.paths.events), read_frontier(bank.paths).batch
    for chunk in events.read(Predicate(done), ("table", *NEEDED)):
        rows = split_tables(chunk).get(TABLES[0])
        if rows is not None:
            batch = max(rows["batch"].to_pylist())
            merge_slice(Slice(
                TABLES[0], bank.paths.state(*split_qualified(TABLES[0])), Application.state(bank.paths.source), batch,
                done, (SCHEMA_OF[TABLES[0]],), (SCHEMA_OF[TABLES[0]],), rows,
            )).raise_error()
            done = batch


def test_plain_reading_between_merges_keeps_sum(tmp_path: Path) -> None:
    """State has merged one table and not the other: newest versions do not belong together."""
    bank = Bank(tmp_path)
    bank.reconcile()
    bank.fold_state()
    for _ in range(5):
        bank.transfer()
    bank.land(10)
    bank.reconcile()
    merge_first_table_only(bank)
    assert sum_of_newest_versions(bank) != TOTAL
    assert sum_of(open_reading(bank.paths)) == TOTAL
    assert sum_of(open_reading(bank.paths, is_live=True)) == TOTAL
    assert sum_of(open_reading(bank.paths, NOW)) == TOTAL


def test_live_reading_inside_a_transaction_stops_before_it(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    bank.transfer()
    bank.land(1)
    live = open_reading(bank.paths, is_live=True)
    assert (sum_of(live), str(live.position)) == (TOTAL, "1/20/38")
    bank.reconcile()
    assert [str(open_reading(bank.paths, *at, is_live=not at).position) for at in ((), (NOW,))] == ["1/20/38"] * 2
    bank.land(1)
    assert str(open_reading(bank.paths, is_live=True).position) == "1/30/2"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [4 * EFFORT])
def test_readings_keep_sum_while_jobs_run(tmp_path: Path, rounds: int) -> None:
    """Each round reads plain, live, at a random position and at a random commit time."""
    bank, draw = Bank(tmp_path), random.Random(rounds)
    bank.reconcile()
    bank.fold_state()
    positions = set()
    with bank.running(pause=0.01 * max(5, rounds)):
        for _ in range(rounds):
            live = open_reading(bank.paths, is_live=True)
            assert sum_of(live) == TOTAL, f"live at {live.position}"
            plain = open_reading(bank.paths)
            assert sum_of(plain) == TOTAL, f"plain at {plain.position}"
            newest = open_reading(bank.paths, NOW)
            assert newest.position is not None
            positions |= {live.position, plain.position}
            lsn = draw.randrange(20, newest.position.lsn + 1)
            assert sum_of(open_reading(bank.paths, f"1/{lsn}")) == TOTAL, f"at position {lsn}"
            moment = max(when(lsn // 10 * 10), when(20))
            assert sum_of(open_reading(bank.paths, moment.isoformat())) == TOTAL, f"at {moment}"
    assert len(positions) >= rounds
