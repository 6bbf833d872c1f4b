"""Verification of a busy database's copy: planted faults are found and repaired, nothing else is reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.schema import Column, TableSchema
from tests.spark.operate.verification.conftest import Rows, VerifiedLake, counts
from tests.support.backends import Backend, PostgresBackend
from tests.support.effort import EFFORT, with_effort
from tests.support.mysql_backend import mysql_backend

T = "public.t"
BUSY = 20
"""Rows with lower keys are written all the time, the others never."""
ROWS = 60
FAULTS = {"missing": ["31"], "extra": ["777"], "different": ["21", "22", "23", "24"]}


def create(backend: Backend) -> None:
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"), Column("w", "text"))))
    with backend.begin() as transaction:
        for key in range(1, ROWS + 1):
            transaction.insert(T, {"id": str(key), "v": f"first {key}", "w": "w"})


@contextmanager
def writing(backend: Backend, seed: int) -> Iterator[None]:
    """Insert, update and delete rows with low keys, and move some to other keys, within the block."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        random, number = Random(seed), 0
        try:
            while not stop.is_set():
                number += 1
                key, other = str(random.randrange(1, BUSY)), str(random.randrange(1000, 1020))
                with backend.begin() as transaction:
                    kind = random.randrange(4)
                    transaction.delete(T, {"id": other})
                    if kind == 0:
                        transaction.delete(T, {"id": key})
                        transaction.insert(T, {"id": key, "v": f"new {number}", "w": None})
                    elif kind == 1:
                        transaction.update(T, {"id": key}, {"id": other})
                        transaction.insert(T, {"id": key, "v": f"moved {number}", "w": "x"})
                    else:
                        transaction.update(T, {"id": key}, {"v": f"changed {number}"})
                stop.wait(0.03)
        except BaseException as error:  # noqa: BLE001 - raised by the block's end
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        if failures:
            raise failures[0]


def plant_faults(rows: Rows) -> Rows:
    """Plant a value, a NULL, a byte of text, a stale row, a missing row and an extra row."""
    by_key = {row["id"]: row for row in rows}
    by_key[21]["v"] = "planted"
    by_key[22]["w"] = None
    by_key[23]["v"] = by_key[23]["v"].replace("first", "firsu")
    by_key[24] |= {"v": "older", "_lsn": by_key[24]["_lsn"] - 1}
    extra = by_key[40] | {"_key": "777", "id": 777}
    return [row for row in rows if row["id"] != 31] + [extra]


def read_faults(lake: VerifiedLake, number: int) -> dict[str, list[str]]:
    """Return the wrong keys that a round of the only verification lists, by kind."""
    rows = DeltaTable(lake.paths.verifications).to_pyarrow_table().to_pylist()
    own = [row for row in rows if row["round"] == number]
    return {kind: sorted(key for row in own for key in row[f"{kind}_keys"]) for kind in FAULTS}


def verify_faults_found(lake: VerifiedLake, backend: Backend) -> None:
    with lake.following(), writing(backend, 1):
        lake.dump_and_wait(T)
        lake.corrupt(T, plant_faults)
        results = lake.verify(T, repair=True)
    assert read_faults(lake, 1) == read_faults(lake, 2) == FAULTS
    assert counts(results) == [(1, 1, 4, 6)] and lake.remaining == 0
    assert results[0]["rows_compared"] >= ROWS - BUSY - 1
    lake.capture(lake.database)
    lake.advance()
    source = [(row["id"], row["v"], row["w"]) for row in backend.rows(T)]
    assert lake.live_rows(T) == sorted(source, key=lambda row: tuple(map(str, row)))


@contextmanager
def backend_on(kind: str, request: pytest.FixtureRequest) -> Iterator[Backend]:
    if kind == "postgres":
        yield PostgresBackend(request.getfixturevalue("database"))
    else:
        with mysql_backend(request.getfixturevalue(kind)) as backend:
            yield backend


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow),
             *with_effort(pytest.param("mysql", marks=pytest.mark.slow))],
)
def test_faults_under_load_are_found_and_repaired(
    kind: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    with backend_on(kind, request) as backend:
        create(backend)
        lake = VerifiedLake(tmp_path, backend.source("public.*"), spark)
        lake.capture(lake.database)
        verify_faults_found(lake, backend)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["postgres", "mariadb", *with_effort("mysql")])
def test_repeated_verifications_beside_changes_report_faults_only(
    kind: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    """Verifications beside writes, key changes, dumps and schema changes; every second one has a fault."""
    runs, random = 2 * EFFORT, Random(7)
    with backend_on(kind, request) as backend:
        create(backend)
        lake = VerifiedLake(tmp_path, backend.source("public.*"), spark)
        lake.capture(lake.database)
        with lake.following(), writing(backend, 2):
            lake.dump_and_wait(T)
            for number in range(runs):
                action = ["column", "nothing"][number] if number < 2 else random.choice(["dump", "column", "nothing"])
                if action == "dump":
                    lake.dump(T)
                elif action == "column":
                    backend.add_column(T, Column(f"c{number}", "text"), f"default {number}")
                planted = number % 2 and action == "nothing"
                if planted:
                    lake.corrupt(T, lambda rows: [row | {"v": "planted"} if row["id"] == 30 else row for row in rows])
                results = lake.verify(T, repair=True)
                assert counts(results) == [(0, 0, 1, 1) if planted else (0, 0, 0, 0)], (number, action)
                assert lake.remaining == 0 and results[0]["rows_compared"] > 0
