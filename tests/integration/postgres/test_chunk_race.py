"""A table rewritten while a chunk read waits for its lock appears empty to the read's snapshot, without an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database)
    yield backend
    backend.close()


@pytest.mark.parametrize("rewrite", [
    pytest.param("ALTER TABLE t ALTER v TYPE bigint", id="type"),
    pytest.param("ALTER TABLE t ALTER v TYPE integer USING v + 1", id="values", marks=pytest.mark.slow),
    pytest.param("ALTER TABLE t ADD w text DEFAULT clock_timestamp()::text", id="default"),
])
def test_chunk_of_table_rewritten_during_read_is_discarded(
    backend: PostgresBackend, tmp_path: Path, rewrite: str
) -> None:
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "integer"))))
    backend.run("INSERT INTO t SELECT n, n FROM generate_series(1, 5) n")
    source = backend.source("public.*")
    lake = CaptureLake(tmp_path)
    lake.dump(T)
    other = backend.database.connect()
    other.autocommit = False

    def commit_when_read_waits() -> None:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        deadline = time.monotonic() + 20
        while not backend.value(waiting, backend.database.name) and time.monotonic() < deadline:
            time.sleep(0.02)
        other.commit()

    committer = threading.Thread(target=commit_when_read_waits)

    def rewrite_table() -> None:
        with other.cursor() as cursor:
            cursor.execute(rewrite)
        committer.start()

    lake.capture(source, steps={("low", T): rewrite_table})
    committer.join()
    other.close()
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    # Whether this capture also detects the rewrite and dumps the table again depends on when it scans the catalog.
    first, *others = (line.status for line in lake.reconciled()[1])
    assert (first, set(others)) == ("discarded", {"closed"})
