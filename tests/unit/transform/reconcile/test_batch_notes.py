"""The batches that reconcile notes in its commits to events, from which the time of their arrival is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.batch_times import read_batch_times
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from tests.support.landed import Change, land

T = TableSchema("public.t", (Column("id", "integer", False, 1),))


def no_spark() -> SparkSession:
    raise AssertionError("started Spark")


def test_reconcile_notes_batches_of_each_commit(tmp_path: Path) -> None:
    paths, started = Paths(str(tmp_path), "shop"), datetime.now(UTC).replace(microsecond=0)
    for batches in ((1, 2, 3), (4,)):
        changes = [
            Change(batch, 1, Position(1, 10 * batch), batch, T.table, "c", ("1",), {"id": "1"}, last=True)
            for batch in batches
        ]
        land(paths.landing, "shop", changes, {T.table: T})
        reconcile_once(no_spark, paths)
    times = read_batch_times(paths.events, started).sort_by("batch").to_pylist()
    assert [(row["first"], row["batch"]) for row in times] == [(1, 3), (4, 4)]
    assert started <= times[0]["at"] <= times[1]["at"] <= datetime.now(UTC)
