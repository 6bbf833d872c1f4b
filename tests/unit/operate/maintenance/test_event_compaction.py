"""Compaction of events: the same rows in fewer files, in order, and never over another writer's commit."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given, settings
from hypothesis import strategies as st

from dblake.base.lake import log
from dblake.base.lake.figures import count_rows
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch, replace_files
from dblake.base.lake.tables import open_table
from dblake.operate.maintenance import event_compaction
from dblake.operate.maintenance.event_compaction import compact_events
from dblake.transform.events import files
from dblake.transform.events.file_reader import open_event_file, order_by_position
from dblake.transform.events.files import EVENT_COLUMNS
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

TABLES = [table_schema(f"public.{name}", "id text key", "v text") for name in ("a", "b", "c")]
BATCHES = 10


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    """Ten files, one a batch, of events of three tables in turn."""
    lake = PlainLake(tmp_path)
    for batch in range(1, BATCHES + 1):
        lake.append(_batch(batch, range(1, 31)), batch)
    return lake


def _batch(batch: int, numbers: range, size: int = 20) -> pa.Table:
    return pa.concat_tables([
        event_rows(TABLES[n % 3], batch, [(100 * batch + n, "c", str(n), {"v": os.urandom(size).hex()})])
        for n in numbers
    ])


def _read(paths: Paths) -> pa.Table:
    rows = DeltaTable(paths.events).to_pyarrow_table().cast(EVENT_COLUMNS)
    return rows.take(pa.array(order_by_position(rows)))


def _row_groups(paths: Paths) -> list[pa.Table]:
    groups = []
    for name in DeltaTable(paths.events).file_uris():
        with open_event_file(paths.events, os.path.basename(name)) as file:
            groups += [file.read_row_group(number) for number in range(file.num_row_groups)]
    return groups


def test_compaction_of_small_files_keeps_rows_and_batch(lake: PlainLake) -> None:
    before, figures = _read(lake.paths), count_rows(lake.paths.events)
    assert compact_events(lake.paths.events) == BATCHES
    assert len(DeltaTable(lake.paths.events).file_uris()) == 1
    assert _read(lake.paths).equals(before)
    assert newest_batch(lake.paths.events, Application.reconcile("shop")) == BATCHES
    assert count_rows(lake.paths.events) == figures
    assert compact_events(lake.paths.events) == 0


def test_compaction_with_size_limit_leaves_large_files(lake: PlainLake) -> None:
    lake.append(_batch(11, range(1, 91), 400), 11)
    sizes = sorted(file["size_bytes"] for file in _files(lake))
    assert compact_events(lake.paths.events, sizes[-1]) == BATCHES
    left = [file["size_bytes"] for file in _files(lake)]
    assert sizes[-1] in left
    assert all(size <= 2 * sizes[-1] for size in left)


def _files(lake: PlainLake) -> list[dict[str, int]]:
    found: list[dict[str, int]] = pa.table(DeltaTable(lake.paths.events).get_add_actions(flatten=True)).to_pylist()
    return found


def test_compaction_changes_no_row_for_change_readers(lake: PlainLake) -> None:
    compact_events(lake.paths.events)
    newest = max(Path(lake.paths.events, "_delta_log").glob("*.json")).read_text("utf-8")
    assert newest.count('"dataChange":false') == BATCHES + 1
    assert '"dataChange":true' not in newest


def test_compaction_beside_append_keeps_appended_rows(lake: PlainLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconcile commits a batch after the files were read."""
    def replace(path: str, *args: object) -> None:
        monkeypatch.setattr(event_compaction, "replace_files", replace_files)
        lake.append(_batch(11, range(1, 31)), 11)
        replace_files(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(event_compaction, "replace_files", replace)
    compact_events(lake.paths.events)
    assert _read(lake.paths).num_rows == 30 * (BATCHES + 1)
    assert len(_files(lake)) == 2


def test_compaction_beside_replaced_file_starts_over(lake: PlainLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redecode, or another maintain, removes a file after it was read: its rows must not return."""
    def replace(path: str, *args: object) -> None:
        monkeypatch.setattr(event_compaction, "replace_files", replace_files)
        DeltaTable(path).delete("batch = 3")
        replace_files(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(event_compaction, "replace_files", replace)
    compact_events(lake.paths.events)
    assert _read(lake.paths).num_rows == 30 * (BATCHES - 1)


def test_replacing_removed_file_is_rejected(lake: PlainLake) -> None:
    table = open_table(lake.paths.events)
    name = _files(lake)[0]
    DeltaTable(lake.paths.events).delete("batch = 10")
    with pytest.raises(CommitFailedError):
        log.replace_files(lake.paths.events, table, {str(name["path"]): 1}, [])
    assert _read(lake.paths).num_rows == 30 * (BATCHES - 1)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([1, 2_000, 20_000, 1 << 30]))
def test_compaction_of_overlapping_files_orders_rows(seed: int, limit: int) -> None:
    """Files whose positions overlap, as those of the tasks of a micro-batch may, and any size of what is sorted."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_compaction, "_ORDERED_BYTES", limit)
        patch.setattr(files, "_SEGMENT_BYTES", 5_000)
        patch.setattr(files, "_MEASURED_BYTES", 500)
        patch.setattr(files, "_ROW_GROUP_BYTES", 2_000)
        lake = PlainLake(Path(folder))
        numbers = list(range(1, 81))
        chance.shuffle(numbers)
        for batch in range(1, 5):
            part = sorted(numbers[20 * (batch - 1) : 20 * batch])
            lake.append(pa.concat_tables([
                event_rows(chance.choice(TABLES), batch, [(n, "c", str(n), {"v": "x" * chance.choice([1, 300])})])
                for n in part
            ]), batch)
        before = _read(lake.paths)
        compact_events(lake.paths.events)
        assert len(_files(lake)) == 1
        assert _read(lake.paths).equals(before)
        for group in _row_groups(lake.paths):
            assert (order_by_position(group) == list(range(group.num_rows))).all()
