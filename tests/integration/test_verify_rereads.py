"""What a verification must not pass over, on real servers: an update that does not log a wrong value, lossy values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.dump_queue import queue_verification
from dblake.operate.verification.requests import Verification
from tests.support.backends import Backend, PostgresBackend
from tests.support.copied import CopiedLake
from tests.support.mysql_backend import mysql_backend
from tests.support.postgres import Database

T = "public.t"
LONG = "x" * 5000


@contextmanager
def backend_on(kind: str, request: pytest.FixtureRequest) -> Iterator[Backend]:
    if kind == "postgres":
        yield PostgresBackend(request.getfixturevalue("database"))
    else:
        with mysql_backend(request.getfixturevalue(kind)) as backend:
            yield backend


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def test_partial_update_beside_second_reading_hides_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """An unchanged TOAST value; on MariaDB a row image without unset blobs."""
    with backend_on(kind, request) as backend:
        columns = (Column("id", "integer", False, 1), Column("v", "text"), Column("big", "text"))
        backend.create(TableSchema(T, columns), toasted=("big",))
        for key in ("1", "2"):
            with backend.begin() as transaction:
                transaction.insert(T, {"id": key, "v": "a", "big": LONG})
        source, lake = backend.source("public.*"), CopiedLake(tmp_path)

        def follow() -> None:
            lake.capture(source)
            lake.copy()

        lake.dump(T)
        follow()
        path = lake.paths.state("public", "t")
        state = DeltaTable(path).to_pyarrow_table()
        wrong = [row | ({"big": "planted"} if row["id"] == 2 else {}) for row in state.to_pylist()]
        write_deltalake(path, pa.Table.from_pylist(wrong, state.schema), mode="overwrite")
        verification = Verification(lake.paths, lake.store, queue_verification(lake.store, [T]), {T: 1})
        for number in range(1, 10):
            follow()
            if number == 2:
                with backend.begin() as transaction:
                    transaction.update(T, {"id": "2"}, {"v": "b"})
                follow()
            if verification.advance():
                break
        (result,) = verification.results()
        assert (number, result["different"], verification.remaining()) == (3, 1, 1)


def test_verify_counts_values_that_state_cannot_hold(database: Database, tmp_path: Path) -> None:
    """An infinite date, one before Christ, a numeric NaN: NULL in state, and equal only in being so."""
    backend, lake = PostgresBackend(database), CopiedLake(tmp_path)
    database.run(f"CREATE TABLE {T} (id int PRIMARY KEY, day date, price numeric(10, 2))")
    source = backend.source("public.*")
    database.run(f"INSERT INTO {T} VALUES (1, 'infinity', 1), (2, '0044-03-15 BC', 'NaN'), (3, '2026-01-01', 2)")
    lake.dump(T)
    verification = Verification(lake.paths, lake.store, queue_verification(lake.store, [T]), {T: 1})
    lake.capture(source)
    lake.copy()
    assert verification.advance()
    (result,) = verification.results()
    assert (result["rows_compared"], result["lossy"], verification.remaining()) == (3, 3, 0)
    backend.close()
