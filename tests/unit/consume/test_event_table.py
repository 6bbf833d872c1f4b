"""How a subscription reads files of events: no row group twice, however small a portion is."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from dblake.consume import event_table
from dblake.consume.event_table import EventTable, Wanted
from dblake.consume.filters import Selection
from dblake.core.position import Position
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

T = table_schema("public.t", "id text key", "v text")
BATCHES = 20
EVERYTHING = Wanted(Position(1, 0), None, Selection(("*.*",), {}), ["public.t"])


def read(lake: PlainLake) -> tuple[list[int], int]:
    """Return the batches of the rows in the order read, and the bytes that were read."""
    table = EventTable(lake.paths)
    table.refresh()
    rows = pa.concat_tables([rows for _, rows in table.read(0, EVERYTHING)])
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
