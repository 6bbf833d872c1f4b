"""Checks beside all running jobs find nothing; the long form is ``./spark-submit.sh stress --checks 20``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support.clean import clean_runs
from tests.support.rig import PACE, rig_at


@pytest.mark.timeout(900)
def test_checks_beside_all_running_jobs_find_nothing(
    spark: SparkSession, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", str(time.time_ns() % 100_000)))
    print(f"DBLAKE_SEED={seed}")
    with rig_at(postgres, tmp_path, **PACE) as rig:
        done = clean_runs(rig, spark, 1, seed=seed, kill_every=4.0)
    print(done)
    assert done.captures_killed >= 1 and done.windows["closed"] >= 1
    assert done.suites == dict.fromkeys(("landing", "events", "order", "watermarks", "windows", "state"), 1)
