"""What tests of every kind may ask for: a Spark session and database servers, each started once, if used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

pytest_plugins = [
    "tests.support.report", "tests.support.postgres", "tests.support.mysql", "tests.support.zookeeper",
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Spark session for the whole run, with the settings the jobs have."""
    from dblake.spark.session import spark_session
    from tests.support.report import note_version

    place = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests", **{"spark.master": "local[2]", "spark.local.dir": str(place)}
    )
    for package in ("pyspark", "delta-spark"):
        note_version(package, metadata.version(package))
    note_version("Java", session._jvm.java.lang.System.getProperty("java.version"))
    yield session
    session.stop()
