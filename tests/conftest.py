"""Fixtures for tests of every kind: a Spark session and database servers, started on first use, once per session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib import metadata

import pytest

# A shell makes background processes ignore SIGINT, and children inherit that: the jobs under test must receive it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.support.report", "tests.support.postgres", "tests.support.mysql", "tests.support.zookeeper",
    "tests.support.kafka", "tests.support.sql_places",
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the session's Spark session, with the settings of the jobs."""
    from dblake.spark.session import spark_session
    from tests.support.report import note_version

    local = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "tests", **{"spark.master": "local[2]", "spark.local.dir": str(local)}
    )
    for package in ("pyspark", "delta-spark"):
        note_version(package, metadata.version(package))
    jvm = session._jvm
    assert jvm is not None
    note_version("Java", jvm.java.lang.System.getProperty("java.version"))
    yield session
    session.stop()
