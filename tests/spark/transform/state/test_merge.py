"""The merge into one state table: its guard by position, and replays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.transform.state.fold import NEEDED
from dblake.transform.state.merge import Slice, merge_slice
from dblake.transform.state.table import progress
from tests.spark.transform.state.conftest import Lake, table_schema

TABLE = table_schema("public.t", "id integer key", "a text")
NEW = [(10, "c", "1", {"id": "1", "a": "new"}), (11, "d", "2", None), (12, "c", "3", {"id": "3", "a": "new"})]
ROWS = [(1, "new", 10, False), (2, None, 11, True), (3, "new", 12, False)]


class Target:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.lake, self.path = Lake(spark, root), str(root / "t")

    def merge(self, batch: int, *events: tuple[object, ...]) -> None:
        rows = self.lake.frame(TABLE, batch, events).select(list(NEEDED))
        merge_slice(Slice(TABLE.table, self.path, "state/shop", batch, 0, (TABLE,), (TABLE,), rows)).raise_error()

    def rows(self) -> list[tuple[object, ...]]:
        frame = self.lake.spark.read.format("delta").load(self.path).orderBy("id")
        return [tuple(r) for r in frame.select("id", "a", "_lsn", "_deleted").collect()]


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Target:
    return Target(spark, tmp_path)


def test_older_events_change_no_newer_row(target: Target) -> None:
    target.merge(1, *NEW)
    target.merge(
        2, (5, "c", "1", {"id": "1", "a": "old"}), (6, "c", "2", {"id": "2", "a": "old"}), (7, "d", "3", None)
    )
    assert target.rows() == ROWS


def test_older_truncate_deletes_no_newer_row(target: Target) -> None:
    target.merge(1, *NEW)
    target.merge(2, (4, "c", "4", {"id": "4", "a": "old"}), (11, "t", None, None))
    assert target.rows() == [(1, None, 11, True), (2, None, 11, True), (3, "new", 12, False), (4, None, 11, True)]


def test_replayed_slice_changes_nothing(target: Target) -> None:
    target.merge(1, *NEW)
    target.merge(2, (20, "u", "1", {"a": "newer"}))
    before = progress(target.path, "state/shop")
    target.merge(2, (20, "u", "1", {"a": "newer"}))
    target.merge(1, *NEW)
    assert before is not None and before.batch == 2
    assert progress(target.path, "state/shop") == before


def test_concurrent_state_runs_leave_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.schema(TABLE)
    lake.land(TABLE, 1, *NEW)
    lake.fold()
    lake.land(TABLE, 2, (20, "u", "1", {"a": "newer"}), (21, "c", "4", {"id": "4", "a": "new"}))
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(lake.fold), pool.submit(lake.fold)]:
            run.result()
    rows = lake.state("public", "t").orderBy("id").select("id", "a", "_lsn", "_deleted").collect()
    assert [tuple(r) for r in rows] == [
        (1, "newer", 20, False), (2, None, 11, True), (3, "new", 12, False), (4, "new", 21, False)
    ]
