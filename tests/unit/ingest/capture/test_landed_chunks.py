"""The record of landed rows of dumps ends with an accepted gap, also if no table is dumped after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.base.core.errors import PositionLost
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.landed_chunks import save_landed_chunks
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from tests.support.lake import CaptureLake


def test_accepted_gap_forgets_landed_chunks(tmp_path: Path) -> None:
    lake, database = CaptureLake(tmp_path), MemoryDatabase()
    database.create_table(TableSchema("public.t", (Column("v", "integer"),)))
    database.make_slot("shop")
    source = MemorySource(database, name="shop", patterns=["public.*"])
    save_landed_chunks(lake.store, 7)
    with pytest.raises(PositionLost, match="landing ends at batch 0, and rows of dumps have landed up to batch 7"):
        lake.capture(source)
    lake.capture(source, accept_gap=True)
    lake.capture(source)
    assert lake.reached.batch < 7
