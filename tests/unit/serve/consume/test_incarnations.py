"""Events of several incarnations, whose LSNs may go back, in real files: every reader finds what the rows show."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.operate.maintenance.event_compaction import compact_events
from dblake.serve.consume.event_table import EventTable, OpenTransaction
from dblake.serve.consume.filters import Selection
from dblake.serve.read.event_log import EventLog
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from tests.support.effort import with_effort
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

T = table_schema("public.t", "id text key", "v text")
Row = dict[str, Any]


def make_history(seed: int) -> list[list[Row]]:
    """Return batches of rows in order: transactions of one to four rows, now and then a new, lower or higher log."""
    choose = random.Random(seed)
    rows, lsn, incarnation = list[Row](), 500, 1
    for _ in range(choose.randint(3, 14)):
        if choose.random() < 0.25:
            incarnation, lsn = incarnation + 1, choose.choice([1, lsn - 40, lsn, lsn + 300])
        lsn, size = max(lsn, 0) + choose.randint(1, 60), choose.randint(1, 4)
        origin = choose.choice(["log"] * 5 + ["dump"])
        rows += [
            {"incarnation": incarnation, "lsn": lsn, "seq": 2 * number, "origin": origin,
             "last_in_txn": number + 1 == size if origin == "log" else None}
            for number in range(size)
        ]
    if choose.random() < 0.6:
        rows.pop()  # the rest of its transaction has not landed
    batches = [[row] for row in rows[:1]]
    for row in rows[1:]:
        if choose.random() < 0.5:
            batches.append([])
        batches[-1].append(row)
    return batches


def write(lake: PlainLake, batches: list[list[Row]], choose: random.Random) -> None:
    """Write batches, one or several a file, as reconcile does."""
    number = 0
    while number < len(batches):
        last = min(number + choose.choice([1, 1, 1, 3]), len(batches))
        rows = [
            event_rows(T, batch + 1, [(1, "c", str(batch), {"v": "x"})]).to_pylist()[0] | row
            for batch in range(number, last) for row in batches[batch]
        ]
        lake.append(pa.Table.from_pylist(rows, schema=EVENT_COLUMNS), last)
        number = last


def positions(rows: pa.Table) -> list[tuple[int, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in ("incarnation", "lsn", "seq")), strict=True))


@pytest.mark.parametrize("seed", [*range(8), *with_effort(*range(8, 40))])
def test_readers_agree_with_rows_of_incarnations(tmp_path: Path, seed: int) -> None:
    """Before and after compaction, and with files that mix incarnations, as one reconcile of two writes them."""
    batches, choose = make_history(seed), random.Random(seed)
    lake = PlainLake(tmp_path)
    write(lake, batches, choose)
    for _ in range(2):  # before and after compaction
        require_answers(lake, batches, choose)
        compact_events(lake.paths.events)


def require_answers(lake: PlainLake, batches: list[list[Row]], choose: random.Random) -> None:
    rows = [(row["incarnation"], row["lsn"], row["seq"]) for batch in batches for row in batch]
    newest = max(rows)[:2]
    of_newest = [
        (row, n) for n, batch in enumerate(batches, 1) for row in batch if (row["incarnation"], row["lsn"]) == newest
    ]
    logged = [row for row, _ in of_newest if row["origin"] == "log"]
    is_open = bool(logged) and not any(row["last_in_txn"] for row in logged)
    table, log = EventTable(lake.paths), EventLog(lake.paths)
    table.refresh()
    assert table.newest == Position(*newest)
    first_batch = min(n for _, n in of_newest)
    assert table.find_open_transaction() == (OpenTransaction(*newest, first_batch) if is_open else None)
    ends = log.newest(Predicate()), log.oldest()
    assert [end and end.position for end in ends] == [Position(*max(rows)), Position(*min(rows))]
    for _ in range(4):
        after, until = sorted(Position(choose.randint(1, 4), choose.randint(1, 900)) for _ in range(2))
        wanted = [row for row in sorted(rows) if after < Position(*row) <= until]
        found = log.read_ordered(Predicate(until=until, after=after), ("incarnation", "lsn", "seq"))
        assert [at for part in found for at in positions(part)] == wanted
        selected = table.read(Selection(("*.*",), {}).predicate([T.table], after, until))
        assert sorted(at for _, part in selected for at in positions(part)) == wanted
        assert table.has_after(after, len(batches)) == any(row[:2] > (after.incarnation, after.lsn) for row in rows)


def test_compaction_keeps_incarnations_apart(tmp_path: Path) -> None:
    """After a gap to a lower LSN no file has the least LSN of one log and the greatest of another."""
    lake = PlainLake(tmp_path)
    for batch, (incarnation, lsn) in enumerate([(1, 800), (1, 900), (2, 100), (2, 200), (2, 300)], start=1):
        row: Row = {"incarnation": incarnation, "lsn": lsn, "seq": 0, "origin": "log", "last_in_txn": batch < 5}
        lake.append(pa.Table.from_pylist([event_rows(T, batch, [(1, "c", "1", {})]).to_pylist()[0] | row],
                                         schema=EVENT_COLUMNS), batch)
    assert compact_events(lake.paths.events) == 5
    log = EventLog(lake.paths)
    assert sorted((file.first, file.last.lsn) for file in log.files(Predicate())) == [
        (Position(1, 800), 900), (Position(2, 100), 300)
    ]
    table = EventTable(lake.paths)
    table.refresh()
    assert table.find_open_transaction() == OpenTransaction(2, 300, 5)
