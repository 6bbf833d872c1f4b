"""The record of a rejected start: which server and incarnation it concerns, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.base.core.errors import LogWentBack
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.ingest.capture.rejection import require_no_rejection, save_rejection
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from tests.support.lake import CaptureLake

SERVER = ServerIdentity("4711", "1")
WENT_BACK = LogWentBack("source shop: the log went back, a gap")


def test_rejection_concerns_its_server_and_incarnation(tmp_path: Path) -> None:
    store = CaptureLake(tmp_path).store
    save_rejection(store, WENT_BACK, SERVER, 2)
    with pytest.raises(LogWentBack, match=r"the log went back, a gap\. Next: run capture --accept-gap"):
        require_no_rejection(store, SERVER, 2)
    require_no_rejection(store, ServerIdentity("4711", "2"), 2)
    require_no_rejection(store, SERVER, 3)
    require_no_rejection(store, SERVER, 2)  # the record of an earlier incarnation is gone


def test_rejected_server_stays_rejected_until_accepted(tmp_path: Path) -> None:
    """The server shows nothing of it any more; only the record is left."""
    lake, database = CaptureLake(tmp_path), MemoryDatabase()
    database.create_table(TableSchema("public.t", (Column("id", "integer", False, 1),)))
    database.make_slot("shop")
    source = MemorySource(database, name="shop", patterns=["public.*"])
    lake.capture(source)
    save_rejection(lake.store, WENT_BACK, source.identity(), lake.reached.resume.incarnation)
    with pytest.raises(LogWentBack, match="the log went back"):
        lake.capture(source)
    lake.capture(source, accept_gap=True)
    lake.capture(source)
    assert lake.reached.resume.incarnation == 2
