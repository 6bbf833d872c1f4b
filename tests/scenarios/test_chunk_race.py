"""A table that is rewritten while a chunk read waits for it: the old snapshot then finds it empty, without an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.core.schema import Column, TableSchema
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
    "ALTER TABLE t ALTER v TYPE bigint", "ALTER TABLE t ALTER v TYPE integer USING v + 1",
    "ALTER TABLE t ADD w text DEFAULT clock_timestamp()::text",
])
def test_a_table_rewritten_before_the_read_got_to_it_is_read_again(
    backend: PostgresBackend, tmp_path: Path, rewrite: str
) -> None:
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "integer"))))
    backend.run("INSERT INTO t SELECT n, n FROM generate_series(1, 5) n")
    source = backend.source("public.*")
    lake = CaptureLake(tmp_path)
    lake.dump(T)
    other = backend.database.connect()
    other.autocommit = False

    def commit_once_the_read_waits() -> None:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        deadline = time.monotonic() + 20
        while not backend.value(waits, backend.database.name) and time.monotonic() < deadline:
            time.sleep(0.02)
        other.commit()

    helper = threading.Thread(target=commit_once_the_read_waits)

    def rewrite_table() -> None:
        with other.cursor() as cursor:
            cursor.execute(rewrite)
        helper.start()

    lake.capture(source, steps={("low", T): rewrite_table})
    helper.join()
    other.close()
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    # Whether this capture also finds the rewrite, and dumps the table once more, is up to when it looks.
    first, *others = (line.status for line in lake.reconciled()[1])
    assert (first, set(others)) == ("discarded", {"closed"})
