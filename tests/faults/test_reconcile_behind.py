"""Reconcile after a long stop, with hundreds of batches in landing: it catches up in micro-batches of bounded size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.transform.reconcile.stream import reconcile_once
from tests.support.lake import CaptureLake

T = "public.t"
BATCHES = 300
_STEP = "600k"
_MAX_BATCHES = 150
"""Per micro-batch: a landing batch of one row is a file of about 4.7 kB, so ``_STEP`` is about 130 of them."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reconcile_catches_up_300_batches_in_bounded_steps(spark: SparkSession, tmp_path: Path) -> None:
    database, lake = MemoryDatabase(), CaptureLake(tmp_path)
    database.create_table(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
    database.make_slot("shop")
    source = MemorySource(database, name="shop", patterns=["public.*"])

    def write(first: int, rows: int = BATCHES // 2) -> None:
        for number in range(first, first + rows):
            with database.begin() as transaction:
                transaction.insert(T, {"id": str(number), "v": "a"})

    def land() -> None:
        # One row per batch.
        lake.capture(source, max_rows=1, commits_per_second=10_000)

    write(0, 10)
    land()
    # Reconcile ran before it was stopped.
    reconcile_once(spark, lake.paths, max_bytes_per_trigger=_STEP)
    before = DeltaTable(lake.paths.events).version()
    stopped_at = lake.reached.batch
    write(BATCHES)
    lake.dump(T)
    land()
    write(2 * BATCHES)
    land()
    missed = lake.reached.batch - stopped_at
    assert missed >= BATCHES

    assert reconcile_once(spark, lake.paths, max_bytes_per_trigger=_STEP) == stopped_at + missed

    table = DeltaTable(lake.paths.events)
    steps = table.version() - before
    assert missed / _MAX_BATCHES <= steps <= 6
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert max(file["max.batch"] - file["min.batch"] for file in files) <= _MAX_BATCHES
    events = sorted(
        table.to_pyarrow_table(columns=["incarnation", "lsn", "seq", "op", "key", "after", "batch"]).to_pylist(),
        key=lambda row: (row["incarnation"], row["lsn"], row["seq"]),
    )
    changes = [(row["op"], tuple(dict(row["key"]).values()), dict(row["after"] or {}), row["batch"]) for row in events]
    assert changes == [
        (event.op, event.key, dict(event.after or {}), event.batch) for event in lake.reconciled()[0]
    ]
    assert [op for op, *_ in changes].count("c") == 10 + BATCHES
    assert [op for op, *_ in changes].count("r") == 10 + BATCHES // 2
