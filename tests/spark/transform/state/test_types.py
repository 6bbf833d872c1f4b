"""Every type from capture to state, in a Spark session outside UTC: exact values, and losses by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, unix_micros

from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support import mysql_values, postgres_values
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.parity import TABLE, TWIN, Case, columns, rows, state_value
from tests.support.postgres import Database

_ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def new_york_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session in a time zone with clock changes: hours that do not exist, and hours that occur twice."""
    previous = spark.conf.get(_ZONE)
    assert previous is not None
    spark.conf.set(_ZONE, "America/New_York")
    yield spark
    spark.conf.set(_ZONE, previous)


def require_equal(spark: SparkSession, paths: Paths, cases: Sequence[Case]) -> None:
    """Require every row and its twin in state: each value typed, or NULL and listed as lossy."""
    reconcile_once(spark, paths)
    assert [result.error for result in run_state(spark, paths)] == [None]
    state = spark.read.format("delta").load(paths.state("public", "parity"))
    types = {field.name: field.dataType.simpleString() for field in state.schema}
    instants = [unix_micros(col(n)).alias(n) if types[n] == "timestamp" else col(n) for n in state.columns]
    actual = {
        row["id"]: {n: repr(v) if isinstance(v, float) else v for n, v in row.asDict().items()}
        for row in state.select(instants).collect()
    }
    inserted = rows(cases)
    assert sorted(actual) == [first + n for first in (1, TWIN + 1) for n in range(len(inserted))]
    for number, values in enumerate(inserted, 1):
        expected = {
            name: state_value(types[name], value.text) if (value := values.get(name)) and value.held else None
            for name in columns(cases)
        }
        lossy = sorted(name for name, value in values.items() if value.lossy)
        for row in (actual[number], actual[TWIN + number]):
            assert {name: row[name] for name in expected} == expected
            assert sorted(row["_lossy"]) == lossy


def test_every_mysql_type_reaches_state(
    new_york_session: SparkSession, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    mysql_values.create(mysql_server)
    mysql_values.insert(mysql_server, 1)
    lake = CaptureLake(tmp_path)
    source = MysqlBackend(mysql_server).source("public.*")
    lake.dump(TABLE)
    lake.capture(source)
    mysql_values.insert(mysql_server, TWIN + 1)
    lake.capture(source)
    require_equal(new_york_session, lake.paths, mysql_values.cases(mysql_server.flavour))


def test_every_postgres_type_reaches_state(new_york_session: SparkSession, database: Database, tmp_path: Path) -> None:
    postgres_values.create(database)
    postgres_values.insert(database, 1)
    lake = CaptureLake(tmp_path)
    backend = PostgresBackend(database)
    source = backend.source("public.*")
    lake.dump(TABLE)
    lake.capture(source)
    postgres_values.insert(database, TWIN + 1)
    lake.capture(source)
    backend.close()
    require_equal(new_york_session, lake.paths, postgres_values.CASES)
