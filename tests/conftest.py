"""What tests of every kind may ask for: a Spark session and database servers, each started once, if used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.support.postgres", "tests.support.mysql", "tests.support.zookeeper"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Spark session for the whole run, with the settings the jobs have."""
    from dblake.spark.session import spark_session

    place = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests", **{"spark.master": "local[2]", "spark.local.dir": str(place)}
    )
    yield session
    session.stop()
