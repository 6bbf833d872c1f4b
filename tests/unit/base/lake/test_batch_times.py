"""When landing batches arrived in a table, read back from the commits of its Delta log."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dblake.base.lake.batch_times import BATCHES, note_batches, read_batch_times
from dblake.base.lake.log import Application, commit_files, record_batch

RECONCILE = Application.reconcile("shop")
ROWS = pa.schema([("n", pa.int64())])
NOW = datetime.now(UTC).replace(microsecond=0)


def entry(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020}.json"


def append(folder: Path, first: int, last: int) -> None:
    properties = CommitProperties(note_batches(first, last), app_transactions=[Transaction(RECONCILE, last)])
    write_deltalake(str(folder), pa.table({"n": [last]}, ROWS), mode="append", commit_properties=properties)


def write_log(folder: Path, ages: list[timedelta]) -> None:
    """Give a table one commit of a batch each, so long ago."""
    DeltaTable.create(str(folder), ROWS)
    commit_files(str(folder), DeltaTable(str(folder)), RECONCILE, 1, [], note_batches(1, 1))
    template = [json.loads(line) for line in entry(folder, 1).read_text().splitlines()]
    (info,) = (action["commitInfo"] for action in template if "commitInfo" in action)
    for batch, age in enumerate(ages, 1):
        info |= {"timestamp": int((NOW - age).timestamp() * 1000), BATCHES: f"{batch}-{batch}"}
        entry(folder, batch).write_text("\n".join(map(json.dumps, template)))


def found(folder: Path, since: datetime) -> list[tuple[int, int]]:
    rows = read_batch_times(str(folder), since).sort_by("batch").to_pylist()
    return [(row["first"], row["batch"]) for row in rows]


def test_batch_times_of_other_commits_are_left_out(tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    append(tmp_path, 1, 4)
    append(tmp_path, 5, 5)
    record_batch(str(tmp_path), RECONCILE, 7)
    commit_files(str(tmp_path), DeltaTable(str(tmp_path)), RECONCILE, 9, [], note_batches(8, 9))
    DeltaTable(str(tmp_path)).optimize.compact()
    record_batch(str(tmp_path), Application.redecode("shop"), 1)
    assert found(tmp_path, before) == [(1, 4), (5, 5), (8, 9)]
    times = read_batch_times(str(tmp_path), before)["at"].to_pylist()
    assert all(before <= at <= datetime.now(UTC) for at in times)


def test_batch_times_without_table_or_note_are_empty(tmp_path: Path) -> None:
    times = read_batch_times(str(tmp_path / "none"), NOW)
    assert (times.num_rows, times.schema.field("at").type) == (0, pa.timestamp("us", tz="UTC"))
    DeltaTable.create(str(tmp_path), ROWS)
    record_batch(str(tmp_path), RECONCILE, 1)
    assert read_batch_times(str(tmp_path), NOW - timedelta(days=1)).equals(times)


def test_batch_times_of_cleaned_log_are_those_left(tmp_path: Path) -> None:
    for batch in range(1, 6):
        append(tmp_path, batch, batch)
    DeltaTable(str(tmp_path)).create_checkpoint()
    append(tmp_path, 6, 7)
    for version in range(4):
        entry(tmp_path, version).unlink()
    assert found(tmp_path, NOW - timedelta(days=1)) == [(5, 5), (6, 7)]


def test_batch_times_of_long_log_are_complete_for_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read as far back as the period reaches, and not to its beginning."""
    write_log(tmp_path, [timedelta(minutes=600 - batch) for batch in range(1, 601)])
    limits: list[int] = []
    history = DeltaTable.history

    def noted(table: DeltaTable, limit: int) -> list[dict[str, Any]]:
        limits.append(limit)
        return history(table, limit)

    monkeypatch.setattr(DeltaTable, "history", noted)
    assert found(tmp_path, NOW - timedelta(minutes=30)) == [(batch, batch) for batch in range(570, 601)]
    assert limits == [100]
    assert found(tmp_path, NOW - timedelta(minutes=250)) == [(batch, batch) for batch in range(350, 601)]
    assert limits == [100, 100, 400]
    monkeypatch.setattr("dblake.base.lake.batch_times._MAX_COMMITS", 200)
    assert found(tmp_path, NOW - timedelta(minutes=250)) == [(batch, batch) for batch in range(401, 601)]
    assert limits[3:] == [100, 200]
