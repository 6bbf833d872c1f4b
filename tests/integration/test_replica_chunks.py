"""Chunks from a replica that lags, with the log of its primary: the copy is exact, and unfit replicas are rejected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.mysql.source import MysqlSource
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.source import PostgresSource
from tests.conformance.script import Script, event_lines
from tests.support.backends import Backend, PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import Cluster, cluster_of
from tests.support.postgres import Database, fresh_database
from tests.support.standby import standby_of

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))


class Replicated:
    """A primary with one replica whose replication can be held."""

    backend: Backend

    def hold(self) -> None:
        """Let the replica apply nothing more."""
        raise NotImplementedError

    def release(self) -> None:
        """Let the replica apply what it has missed."""
        raise NotImplementedError

    def source(self) -> Source:
        """Return the source whose chunks come from the replica."""
        raise NotImplementedError

    def make_unfit(self) -> str:
        """Make the replica unfit for chunks; return the reason that is expected."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the replica."""
        raise NotImplementedError


class ReplicatedPostgres(Replicated):
    def __init__(self, backend: PostgresBackend, standby: EmbeddedPostgres) -> None:
        self.backend, self._postgres = backend, backend
        self._standby = standby

    def hold(self) -> None:
        Database(self._standby, "postgres").rows("SELECT pg_wal_replay_pause()")

    def release(self) -> None:
        Database(self._standby, "postgres").rows("SELECT pg_wal_replay_resume()")

    def source(self) -> Source:
        self._postgres.source("public.*")
        assert self._postgres.settings is not None
        return PostgresSource(replace(self._postgres.settings, replica=("127.0.0.1", self._standby.port)))

    def make_unfit(self) -> str:
        Database(self._standby, "postgres").rows("SELECT pg_promote()")
        return "is not a standby, so chunks cannot be read there"

    def stop(self) -> None:
        self._standby.stop()


class ReplicatedMysql(Replicated):
    def __init__(self, backend: MysqlBackend, cluster: Cluster) -> None:
        self.backend, self._mysql, self._cluster = backend, backend, cluster
        (self._replica,) = cluster.replicas
        self._replica.run("SET GLOBAL read_only = ON")

    def hold(self) -> None:
        self._cluster.pause(self._replica)

    def release(self) -> None:
        self._cluster.follow(self._replica)

    def source(self) -> Source:
        self._mysql.source("public.*")
        assert self._mysql.settings is not None
        self._cluster.wait()
        return MysqlSource(replace(self._mysql.settings, replica=("127.0.0.1", self._replica.port)))

    def make_unfit(self) -> str:
        self._replica.run("SET GLOBAL read_only = OFF")
        return "it accepts writes of its own"

    def stop(self) -> None:
        self._replica.stop()


@contextmanager
def replicated_postgres(folder: Path) -> Iterator[Replicated]:
    with (
        EmbeddedPostgres(folder / "primary", settings={"fsync": "off"}) as primary, fresh_database(primary) as database,
        standby_of(primary, folder / "standby", version=16) as standby,
    ):
        backend = PostgresBackend(database)
        yield ReplicatedPostgres(backend, standby)
        backend.close()


@pytest.fixture(params=["postgres", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mariadb", "mysql"))])
def replicated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicated]:
    if request.param == "postgres":
        with replicated_postgres(tmp_path) as postgres:
            yield postgres
    else:
        with cluster_of(request.param, tmp_path, size=2) as cluster:
            yield ReplicatedMysql(MysqlBackend(cluster.primary), cluster)


def test_chunks_from_replica_equal_source(replicated: Replicated, tmp_path: Path) -> None:
    """The replica lags when the chunk is due, and rows change before, while and after it is read."""
    backend, lake = replicated.backend, CaptureLake(tmp_path / "lake")
    backend.create(ITEMS)
    script = Script(backend, T)
    script.run([f"insert {n} a" for n in range(1, 31)])
    source = replicated.source()
    lake.capture(source)

    def lag() -> None:
        script.run(["update 3 b", "delete 4", "insert 31 b"])
        threading.Timer(0.7, replicated.release).start()

    replicated.hold()
    lake.dump(T)
    lake.capture(
        source, chunk_size=7,
        steps={("low", T): lag, ("read", T): lambda: script.run(["update 5 c", "delete 6", "insert 32 c"])},
    )
    assert [dump["state"] for dump in lake.dumps()] == ["done"]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    (check,) = [check for check in source.preflight() if check.check == "replica"]
    assert (check.ok, check.detail) == (True, "")

    why = replicated.make_unfit()
    lake.dump(T)
    lake.capture(source)
    assert [dump["state"] for dump in lake.dumps()] == ["done", "failed"]
    assert why in lake.dumps()[1]["error"]
    (check,) = [check for check in source.preflight() if check.check == "replica"]
    assert not check.ok and why in check.detail

    replicated.stop()
    lake.dump(T)
    script.run(["insert 33 d"])
    lake.capture(source, until=Until(seconds=5))
    assert [dump["state"] for dump in lake.dumps()] == ["done", "failed", "running"]
    assert "c 33 d" in event_lines(lake.reconciled()[0], T)
