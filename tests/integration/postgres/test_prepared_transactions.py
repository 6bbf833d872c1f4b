"""Prepared transactions (two-phase commit): their rows count from COMMIT PREPARED on, and a new slot waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.ingest.source.postgres import init
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import fresh_database

T = "public.t"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    folder = tmp_path_factory.mktemp("prepared")
    with EmbeddedPostgres(folder / "postgres", settings={"max_prepared_transactions": "5"}) as server:
        yield server


@pytest.fixture
def backend(server: EmbeddedPostgres) -> Iterator[PostgresBackend]:
    with fresh_database(server) as database:
        backend = PostgresBackend(database)
        yield backend
        backend.close()


def prepare(backend: PostgresBackend, name: str, *statements: str) -> None:
    backend.run("; ".join(("BEGIN", *statements, f"PREPARE TRANSACTION '{name}'")))


@pytest.mark.parametrize("point", [pytest.param("low", marks=pytest.mark.slow), "read",
                                   pytest.param("high", marks=pytest.mark.slow)])
def test_prepared_transaction_across_dump_converges(backend: PostgresBackend, tmp_path: Path, point: str) -> None:
    """One is prepared before the dump, one in its window; both end in the window, one more after it."""
    backend.run("CREATE TABLE t (id int PRIMARY KEY, v text)",
                "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 6) n")
    source, lake = backend.source("public.*"), CaptureLake(tmp_path)
    prepare(backend, "before", "UPDATE t SET v = 'b' WHERE id = 1", "INSERT INTO t VALUES (7, 'b')")
    prepare(backend, "late", "DELETE FROM t WHERE id = 6", "INSERT INTO t VALUES (8, 'l')")
    prepare(backend, "undone", "UPDATE t SET v = 'u' WHERE id = 3", "INSERT INTO t VALUES (9, 'u')")

    def in_window() -> None:
        prepare(backend, "inside", "UPDATE t SET id = 10 WHERE id = 2")
        backend.run("COMMIT PREPARED 'before'", "COMMIT PREPARED 'inside'")

    lake.dump(T)
    lake.capture(source, chunk_size=2, steps={(point, T): in_window})
    assert "8" not in {row["id"] for row in lake.state(T).values()}
    backend.run("COMMIT PREPARED 'late'", "ROLLBACK PREPARED 'undone'")
    lake.capture(source)
    expected = {"1": "b", "3": "a", "4": "a", "5": "a", "7": "b", "8": "l", "10": "a"}
    assert {row["id"]: row["v"] for row in lake.state(T).values()} == expected
    assert {row["id"]: row["v"] for row in backend.rows(T)} == expected


def test_init_behind_prepared_transaction_names_it(
    backend: PostgresBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot cannot begin while the transaction is open; once it has ended, --init completes what it began."""
    monkeypatch.setattr(init, "_WAIT", "1s")
    backend.run("CREATE TABLE t (id int PRIMARY KEY)")
    prepare(backend, "old", "INSERT INTO t VALUES (1)")
    with pytest.raises(PrerequisitesNotMet, match="waited too long for transactions that began before it") as caught:
        backend.source("public.*")
    assert "pg_prepared_xacts" in caught.value.next_step
    assert backend.value("SELECT gid FROM pg_prepared_xacts ORDER BY prepared LIMIT 1") == "old"
    backend.run("COMMIT PREPARED 'old'")
    assert backend.settings is not None
    init.run_init(backend.settings, backend.database.server.user, backend.database.server.password)
    lake = CaptureLake(tmp_path)
    lake.dump(T)
    lake.capture(backend.source("public.*"))
    assert {row["id"] for row in lake.state(T).values()} == {"1"}
