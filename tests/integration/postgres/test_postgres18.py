"""What only PostgreSQL 18 has: virtual generated columns, and keys without overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import fresh_database, note_postgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("pg18") / "data", version=18, settings={"fsync": "off"}) as server:
        note_postgres(server)
        yield server


@pytest.fixture
def backend(server: EmbeddedPostgres) -> Iterator[PostgresBackend]:
    with fresh_database(server) as database:
        backend = PostgresBackend(database)
        yield backend
        backend.close()


def test_generated_columns_are_in_neither_dump_nor_log(backend: PostgresBackend, tmp_path: Path) -> None:
    backend.run(
        "CREATE TABLE v (id int PRIMARY KEY, a int, w int GENERATED ALWAYS AS (a * 2) VIRTUAL,"
        " s int GENERATED ALWAYS AS (a * 3) STORED)",
        "INSERT INTO v (id, a) VALUES (1, 1), (2, 2)",
    )
    lake, source = CaptureLake(tmp_path), backend.source("public.*")
    (check,) = [check for check in source.preflight() if check.check == "generated_columns"]
    assert check.ok and "public.v.w, public.v.s" in check.detail
    lake.dump("public.v")
    lake.capture(source)
    backend.run("UPDATE v SET a = 10 WHERE id = 1", "INSERT INTO v (id, a) VALUES (3, 3)")
    lake.capture(source)
    assert lake.state("public.v") == {
        ("1",): {"id": "1", "a": "10"}, ("2",): {"id": "2", "a": "2"}, ("3",): {"id": "3", "a": "3"},
    }


def test_table_with_key_without_overlaps_is_dumped_and_followed(backend: PostgresBackend, tmp_path: Path) -> None:
    """Its index is no B-tree, so chunks are sorted; its rows are identified by equal keys as any others."""
    backend.run(
        "CREATE TABLE r (id int4range, valid daterange, note text, PRIMARY KEY (id, valid WITHOUT OVERLAPS))",
        "INSERT INTO r SELECT int4range(n, n + 1), daterange('2024-01-01', '2024-02-01'), n::text"
        " FROM generate_series(1, 30) n",
    )
    lake, source = CaptureLake(tmp_path), backend.source("public.*")
    lake.dump("public.r")
    lake.capture(source, chunk_size=7)
    backend.run(
        "UPDATE r SET note = 'z' WHERE note = '1'", "DELETE FROM r WHERE note = '2'",
        "UPDATE r SET valid = daterange('2024-03-01', '2024-04-01') WHERE note = '3'",
        "INSERT INTO r VALUES ('[3,4)', '[2024-01-01,2024-02-01)', 'again')",
    )
    lake.capture(source)
    rows = sorted(backend.rows("public.r"), key=lambda row: (row["id"] or "", row["valid"] or ""))
    assert len(rows) == 30
    assert sorted(lake.state("public.r").values(), key=lambda row: (row["id"] or "", row["valid"] or "")) == rows
