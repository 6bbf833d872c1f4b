"""Reconcile takes batches only from the landing table that its events come from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.errors import LandingGap
from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from tests.support.landed import Change, land

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))


def no_session() -> SparkSession:
    raise AssertionError("a few log rows need no Spark")


def land_rows(paths: Paths, first: int, last: int) -> None:
    for batch in range(first, last + 1):
        key = str(batch)
        row = Change(batch, 1, Position(1, 10 * batch), batch, T.table, "c", (key,), {"id": key, "v": "x"}, last=True)
        land(paths.landing, "shop", [row], {T.table: T})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Three batches, of which two are reconciled."""
    paths = Paths(str(tmp_path), "shop")
    land_rows(paths, 1, 2)
    assert reconcile_once(no_session, paths) == 2
    land_rows(paths, 3, 3)
    return paths


def test_landing_created_in_place_of_another_is_rejected(paths: Paths) -> None:
    shutil.rmtree(paths.landing)
    land_rows(paths, 1, 5)
    with pytest.raises(LandingGap, match=r"landing is another table .* which reach batch 2") as caught:
        reconcile_once(no_session, paths)
    assert caught.value.exit_code == 78
    assert DeltaTable(paths.events).count() == 2


def test_landing_moved_and_brought_back_is_continued(paths: Paths, tmp_path: Path) -> None:
    shutil.move(paths.landing, tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", paths.landing)
    assert reconcile_once(no_session, paths) == 3


def test_new_landing_with_new_events_is_reconciled(paths: Paths) -> None:
    for path in (paths.landing, paths.events, paths.schemas, paths.windows):
        shutil.rmtree(path)
    land_rows(paths, 1, 4)
    assert reconcile_once(no_session, paths) == 4
