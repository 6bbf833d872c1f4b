"""What a running reconcile finds in landing: by its batch numbers, not by whether landing has changed since."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblake.base.core.errors import LandingGap, ReconcileError
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import ReconcileRun, decoder_error, reconcile_once
from tests.support.landed import Change, land

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))


def no_spark() -> SparkSession:
    raise AssertionError("started Spark")


def land_batch(paths: Paths, batch: int) -> None:
    row = Change(batch, 1, Position(1, 10 * batch), batch, T.table, "c", (str(batch),), {"id": str(batch)}, last=True)
    land(paths.landing, "shop", [row], {T.table: T})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Return a warehouse with one landed batch."""
    paths = Paths(str(tmp_path), "shop")
    land_batch(paths, 1)
    return paths


def test_batch_landed_during_micro_batch_is_found(paths: Paths) -> None:
    """A micro-batch reads landing's log again, and finds a batch that it leaves: no later commit announces that one."""
    run = ReconcileRun(no_spark, paths, "1g")
    land_batch(paths, 2)
    run.advance()
    assert run.reconciler.done() == 1
    assert run.has_new_batches()
    run.advance()
    assert run.reconciler.done() == 2
    assert not run.has_new_batches()


def test_batch_another_process_reconciled_is_not_new(paths: Paths) -> None:
    run = ReconcileRun(no_spark, paths, "1g")
    run.advance()
    land_batch(paths, 2)
    reconcile_once(no_spark, paths)
    assert run.has_new_batches()
    run.advance()
    assert not run.has_new_batches()


def test_landing_that_ends_before_events_raises_gap(paths: Paths) -> None:
    """A landing table that was restored, or begun again, would otherwise look like one without anything new."""
    land_batch(paths, 2)
    reconcile_once(no_spark, paths)
    shutil.rmtree(paths.landing)
    land_batch(paths, 1)
    with pytest.raises(LandingGap, match="landing ends at batch 1, but events reach batch 2"):
        reconcile_once(no_spark, paths)


def test_decoder_error_of_spark_task_keeps_its_cause() -> None:
    """Spark passes on a task's traceback as text."""
    error = ReconcileError("table public.t: row 1 has 3 values", next_step="report it")
    text = "".join(traceback.format_exception(error))
    found = decoder_error(PySparkException(f"An exception was thrown from the Python worker:\n{text}"))
    assert found is not None
    assert (found.what, found.next_step) == ("table public.t: row 1 has 3 values", "report it")
    assert decoder_error(PySparkException(text.replace("ReconcileError", "ValueError"))) is None
