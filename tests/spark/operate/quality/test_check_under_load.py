"""Checks beside all running jobs pass; the long form is ``./spark-submit.sh stress --checks 20``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.clean import run_checks_under_load
from tests.support.effort import choose_seed
from tests.support.rig import PACE, rig_at


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_check_beside_all_jobs_reports_no_failure(
    spark: SparkSession, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    seed = choose_seed()
    with rig_at(postgres, tmp_path, **PACE) as rig:
        figures = run_checks_under_load(rig, spark, 1, seed=seed, kill_every=4.0)
    print(figures)
    assert figures.captures_killed >= 1 and figures.windows["closed"] >= 1
    assert figures.suites == dict.fromkeys(("landing", "events", "order", "watermarks", "windows", "state"), 1)
