"""Landing whose Delta log has lost the commit from which capture resumes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from dblake.base.core.errors import LandingError
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from tests.support.lake import CaptureLake


def test_landing_without_its_commit_is_rejected(tmp_path: Path) -> None:
    """Another program has deleted files of the log; the next step, to restore them, helps."""
    lake, database = CaptureLake(tmp_path), MemoryDatabase()
    database.make_slot("shop")
    lake.capture(MemorySource(database, name="shop", patterns=["public.*"]))
    landing = DeltaTable(lake.paths.landing)
    write_deltalake(landing, landing.to_pyarrow_table().slice(0, 0), mode="append",
                    commit_properties=CommitProperties(custom_metadata={"by": "maintenance"}))
    landing = DeltaTable(lake.paths.landing)
    landing.create_checkpoint()
    log, backup = Path(lake.paths.landing) / "_delta_log", tmp_path / "backup"
    shutil.copytree(log, backup)
    for file in log.glob("*.json"):
        if int(file.stem) < landing.version():
            file.unlink()
    with pytest.raises(LandingError, match="the landing table's log no longer holds the commit") as caught:
        lake.open_landing()
    assert "restore the table's log from a backup" in caught.value.next_step
    shutil.copytree(backup, log, dirs_exist_ok=True)
    assert lake.reached.batch
