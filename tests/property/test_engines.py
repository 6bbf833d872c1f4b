"""Both engines give the same events and ledger: all work in Spark tasks, and all where it is cheapest.

The engine auto compares and decodes in this process here. Other tests compare it with the model, and state of both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.spark.session import Engine, EngineSession
from tests.property.test_reconcile import HISTORIES, SEED, play_kind
from tests.support.histories import PHANTOM_GUARD_SEEDS, interleave_landings, random_steps
from tests.support.landed import land


def rows_of(path: str) -> list[str]:
    return sorted(map(repr, DeltaTable(path).to_pyarrow_table().to_pylist()))


def run(spark: SparkSession, paths: Paths, engine: Engine, max_bytes: str) -> dict[str, Any]:
    """Reconcile all that landed; return the rows of the tables that this makes, sorted."""
    session = EngineSession(lambda: spark, engine)
    reconcile_once(session, paths, max_bytes_per_trigger=max_bytes)
    return {"events": rows_of(paths.events), "windows": rows_of(paths.windows)}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seeds", "max_bytes"), [
    pytest.param([0, *PHANTOM_GUARD_SEEDS[:2]], "1g", id="short"),
    pytest.param(range(SEED, SEED + HISTORIES), "1g", id="long-one micro-batch", marks=pytest.mark.slow),
    pytest.param(range(SEED, SEED + 5), "1k", id="long-one landing batch at a time", marks=pytest.mark.slow),
])
def test_engines_give_the_same_rows(spark: SparkSession, tmp_path: Path, seeds: Iterable[int], max_bytes: str) -> None:
    worlds = [play_kind(kind, random_steps(seed), f"{kind}{seed}") for seed in seeds for kind in ("h", "toast")]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    here, there = Paths(str(tmp_path / "auto"), "source"), Paths(str(tmp_path / "spark"), "source")
    land(here.landing, "source", interleave_landings(worlds), schemas)
    shutil.copytree(here.landing, there.landing)
    expected, actual = run(spark, here, "auto", max_bytes), run(spark, there, "spark", max_bytes)
    assert len(expected["events"]) > 100 and len(expected["windows"]) > 40
    assert actual == expected
