"""Fixtures for tests of every kind: a Spark session and database servers, started on first use, once per session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib import metadata

import pytest

from dblake.transform.spark.startup import set_java_options

# A shell makes background processes ignore SIGINT, and children inherit that: the jobs under test must receive it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests read few rows: the JVM's optimizing compiler would take more time than it saves, here and in jobs' processes.
set_java_options(is_short=True)

# These need packages of their own, which `tests --components` installs.
collect_ignore = [] if "DBLAKE_COMPONENTS_VENV" in os.environ else ["components"]

pytest_plugins = [
    "tests.support.report", "tests.support.interrupted", "tests.support.postgres", "tests.support.mysql",
    "tests.support.zookeeper", "tests.support.s3",
    "tests.support.kafka", "tests.support.sql_places", "tests.support.wheel",
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the session's Spark session, with the settings of the jobs, and those of a warehouse on S3.

    A test on S3 calls ``require_storage`` with its warehouse, as a job does for a session that runs already.
    """
    from dblake.base.lake.storage import Location, Storage
    from dblake.transform.spark.session import spark_session
    from tests.support.report import note_version

    local = tmp_path_factory.mktemp("spark")
    # Compiling plans takes longer than running them on few rows. Jobs that run as processes do compile.
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = spark_session(
        "tests", Location("s3://none/lake", Storage()),
        **{"spark.master": "local[2]", "spark.local.dir": str(local), **interpreted},
    )
    for package in ("pyspark", "delta-spark"):
        note_version(package, metadata.version(package))
    jvm = session._jvm
    assert jvm is not None
    note_version("Java", jvm.java.lang.System.getProperty("java.version"))
    yield session
    session.stop()
