"""Delta logs kept short: what a log still holds after ``clean_log``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import dblake.base.lake.cleanup
from dblake.base.lake.cleanup import clean_log
from dblake.landing.columns import RESUME_METADATA
from dblake.operate.maintenance.run import _newest_landing_version

COMMITS = 60


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of 60 commits with a checkpoint every ten; capture made the first 31."""
    monkeypatch.setattr(dblake.base.lake.cleanup, "_KEPT_COMMITS", 5)
    monkeypatch.setattr(dblake.base.lake.cleanup, "_CHECKPOINT_COMMITS", 10)
    path = tmp_path / "t"
    for number in range(COMMITS):
        metadata = {RESUME_METADATA: "{}"} if number <= 30 else None
        write_deltalake(
            str(path), pa.table({"n": pa.array([number])}), mode="append",
            configuration={"delta.checkpointInterval": "10"},
            commit_properties=CommitProperties(metadata, app_transactions=[Transaction("bench", number)]),
        )
    return path


def versions(table: Path) -> list[int]:
    return sorted(int(entry.stem) for entry in (table / "_delta_log").glob("*[0-9].json"))


def test_clean_log_removes_entries_before_old_checkpoint(table: Path) -> None:
    assert clean_log(str(table), keep_hours=0) > 0
    assert versions(table)[0] >= 40
    opened = DeltaTable(str(table))
    assert (opened.version(), opened.transaction_version("bench"), opened.count()) == (59, 59, COMMITS)
    assert DeltaTable(str(table), version=versions(table)[0]).count() == versions(table)[0] + 1


def test_clean_log_keeps_entries_of_last_hours(table: Path) -> None:
    assert clean_log(str(table), keep_hours=1) == 0
    assert versions(table) == list(range(COMMITS))


def test_clean_log_keeps_capture_commit_at_rest(table: Path) -> None:
    """Maintenance's own commits are newer than capture's last one, from which capture resumes."""
    newest = _newest_landing_version(str(table))
    assert newest == 30
    clean_log(str(table), keep_hours=0, keep_from=newest)
    assert 0 < versions(table)[0] <= 30
    resumed = [c for c in DeltaTable(str(table)).history() if RESUME_METADATA in c]
    assert resumed[0]["version"] == 30


def test_clean_log_writes_checkpoint_when_due(table: Path) -> None:
    for checkpoint in (table / "_delta_log").glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    (table / "_delta_log" / "_last_checkpoint").unlink()
    clean_log(str(table), keep_hours=1)
    assert json.loads((table / "_delta_log" / "_last_checkpoint").read_text())["version"] == COMMITS - 1
