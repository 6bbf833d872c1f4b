"""How a subscription reads files of events: no row group twice, and none of other tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.position import Position
from dblake.base.lake.tables import list_files, open_table
from dblake.serve.consume import event_table
from dblake.serve.consume.event_table import EventTable, OpenTransaction
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.transform.events import files
from dblake.transform.events.footers import Footers
from dblake.transform.events.predicate import Predicate
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

T = table_schema("public.t", "id text key", "v text")
BATCHES = 20
EVERYTHING = Selection(("*.*",), {}).predicate(["public.t"], Position(1, 0))


def read(lake: PlainLake, wanted: Predicate = EVERYTHING) -> tuple[list[int], int]:
    """Return the batches of the rows in the order read, and the bytes that were read."""
    table = EventTable(lake.paths)
    table.refresh()
    rows = pa.concat_tables([rows for _, rows in table.read(wanted)])
    return rows["batch"].to_pylist(), table.bytes_read


def test_small_portions_read_each_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one commit of reconcile holds many batches in one row group."""
    lake = PlainLake(tmp_path)
    for first in (1, BATCHES + 1):
        batches = range(first, first + BATCHES)
        lake.append(pa.concat_tables([
            event_rows(T, batch, [(10 * batch, "c", str(batch), {"v": os.urandom(1000).hex()})])
            for batch in batches
        ]), batches[-1])
    at_once = read(lake)
    monkeypatch.setattr(event_table, "PORTION_BYTES", 1)
    assert read(lake) == at_once
    assert at_once[0] == list(range(1, 2 * BATCHES + 1))


@pytest.mark.parametrize("portion", [1, event_table.PORTION_BYTES])
def test_reader_of_one_table_skips_row_groups_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    """The events of ten tables come in turn, in one file."""
    monkeypatch.setattr(files, "_GROUPED_BYTES", 20_000)
    monkeypatch.setattr(event_table, "PORTION_BYTES", portion)
    schemas = [table_schema(f"public.t{n}", "id text key", "v text") for n in range(10)]
    lake = PlainLake(tmp_path)
    lake.append(pa.concat_tables([
        event_rows(schemas[n % 10], 1 + n // 50, [(10 * n + 1, "c", str(n), {"v": os.urandom(1000).hex()})])
        for n in range(500)
    ]), 10)
    every = Selection(("*.*",), {}).predicate(sorted(schema.table for schema in schemas), Position(1, 0))
    one = Selection(("public.t7",), {}).predicate(["public.t7"], Position(1, 0))
    (batches, all_bytes), (of_one, bytes_of_one) = read(lake, every), read(lake, one)
    assert batches == [1 + n // 50 for n in range(500)]
    assert of_one == [1 + n // 50 for n in range(500) if n % 10 == 7]
    assert bytes_of_one < all_bytes / 9
    # Keys have no statistics: those of all tables are read, and the images of this one.
    share = Selection(("public.*",), {}, Partition("mod", 10, (7,)))
    of_share, bytes_of_share = read(lake, share.predicate(list(every.tables or ()), Position(1, 0)))
    assert of_share == of_one
    assert bytes_of_one < bytes_of_share < all_bytes / 7


@pytest.mark.parametrize(("by", "of"), [("mod", 2), ("range", 10)])
@pytest.mark.parametrize("start", ["bootstrap", "1/0"])
def test_share_ignores_keys_of_other_tables(tmp_path: Path, by: Any, of: int, start: str) -> None:
    """One file holds the selected table and one with text keys; state lacks a value, which only events have."""
    numbered = table_schema("public.numbered", "id bigint key", "at date")
    named = table_schema("public.named", "code text key", "v text")
    lake = PlainLake(tmp_path)
    for schema in (numbered, named):
        lake.schema(schema)
    lake.land(1, {
        named: [(1, "c", "x", {"code": "x", "v": "a"})],
        numbered: [(2, "c", "4", {"id": "4", "at": "infinity"}), (3, "c", "15", {"id": "15", "at": "2024-01-01"})],
    })
    lake.fold(1)
    lake.land(2, {named: [(4, "d", "x", None)], numbered: [(5, "c", "8", {"id": "8", "at": None})]})
    selection = Selection(["public.numbered"], {}, Partition(by, of, (0,)))
    settings = SubscriptionSettings(selection, start, until_caught_up=True)
    with Subscription([lake.paths], settings) as subscription:
        events = [event for one in subscription for event in one.events]
    assert {(event.key or {})["id"]: (event.after or {})["at"] for event in events} == {"4": "infinity", "8": None}


def test_open_transaction_is_read_once(tmp_path: Path) -> None:
    """Each commit of reconcile adds a part of it: what was read of the parts before is kept."""
    lake, table, sizes = PlainLake(tmp_path), EventTable(PlainLake(tmp_path).paths), list[int]()
    for batch in range(1, BATCHES + 1):
        rows = event_rows(T, batch, [(10, "c", f"{batch} {n}", {"v": "x"}) for n in range(1000)])
        is_last = pa.array([False] * rows.num_rows)
        lake.append(rows.set_column(rows.schema.get_field_index("last_in_txn"), "last_in_txn", is_last), batch)
        table.refresh()
        before = table.bytes_read
        assert table.find_open_transaction() == OpenTransaction(1, 10, 1)
        sizes.append(table.bytes_read - before)
    assert max(sizes) < 1.5 * sizes[0]


def test_footers_of_many_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that reads a long history keeps the footers of its last files only."""
    lake = PlainLake(tmp_path)
    for batch in range(1, BATCHES + 1):
        lake.append(event_rows(T, batch, [(10 * batch, "c", str(batch), {"v": "x"})]), batch)
    footers = Footers(lake.paths.events)
    names = [file["path"] for file in list_files(open_table(lake.paths.events)).to_pylist()]
    monkeypatch.setattr("dblake.transform.events.footers.MAX_BYTES", 5 * footers.get(names[0]).metadata.serialized_size)
    assert [footers.get(name).metadata.num_rows for name in names] == [1] * BATCHES
    assert 1 < len(footers) <= 5
    assert read(lake)[0] == list(range(1, BATCHES + 1))
