"""What capture lands of every MySQL type, reconciled and folded in a session that is not in UTC: values and losses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, unix_micros

from pipelines.reconcile import reconcile_once
from pipelines.state import run_state
from tests.support import mysql_values as parity
from tests.support.lake import Lake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend

_ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[SparkSession]:
    """The session in a time zone with hours that do not exist and hours that come twice."""
    before = spark.conf.get(_ZONE)
    spark.conf.set(_ZONE, "America/New_York")
    yield spark
    spark.conf.set(_ZONE, before)


def held(spark_type: str, text: str) -> object:
    """What a column of a Spark type holds of a value; instants in microseconds."""
    name = spark_type.partition("(")[0]
    if name == "timestamp":
        return (datetime.fromisoformat(text) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    if name in ("tinyint", "smallint", "int", "bigint"):
        return int(text)
    return {
        "string": str, "decimal": Decimal, "double": float, "float": lambda t: float(np.float32(t)),
        "date": date.fromisoformat, "timestamp_ntz": datetime.fromisoformat,
        "binary": lambda t: bytes.fromhex(t.removeprefix("\\x")),
    }[name](text)


def test_a_dumped_row_and_its_twin_are_one_value_in_state(
    elsewhere: SparkSession, mysql_server: MysqlServer, tmp_path: Path
) -> None:
    parity.create(mysql_server)
    parity.insert(mysql_server, 1)
    lake = Lake(tmp_path)
    source = MysqlBackend(mysql_server).source("public.*")
    lake.dump(parity.TABLE)
    lake.capture(source)
    parity.insert(mysql_server, parity.TWIN + 1)
    lake.capture(source)

    reconcile_once(elsewhere, lake.paths)
    assert [result.error for result in run_state(elsewhere, lake.paths)] == [None]

    state = elsewhere.read.format("delta").load(lake.paths.state("public", "parity"))
    types = {field.name: field.dataType.simpleString() for field in state.schema}
    instants = [unix_micros(col(n)).alias(n) if types[n] == "timestamp" else col(n) for n in state.columns]
    rows = {row["id"]: row.asDict() for row in state.select(instants).collect()}
    given = parity.rows(mysql_server.flavour)
    assert sorted(rows) == [first + n for first in (1, parity.TWIN + 1) for n in range(len(given))]
    for number, values in enumerate(given, 1):
        expected = {
            name: held(types[name], value.text) if (value := values.get(name)) and value.held else None
            for name in parity.columns(mysql_server.flavour)
        }
        lossy = sorted(name for name, value in values.items() if value.lossy)
        for row in (rows[number], rows[parity.TWIN + number]):
            assert {name: row[name] for name in expected} == expected
            assert sorted(row["_lossy"]) == lossy
