"""Where another server's log continues what landed, by GTIDs, and which servers are rejected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dblake.base.core.errors import DivergedServer, ExitCode, PositionLost, WrongServer
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.mysql.continuation import find_continuation
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.mysql_cluster import Cluster, cluster_of, executed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_ITEMS = TableSchema("public.t", (Column("id", "integer", False, 1),))


class Followed:
    """A primary whose log has been read to ``landed``, and a replica that may have to continue it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.primary, self.replica = cluster.primary, cluster.replicas[0]
        cluster.primary.empty()
        backend = MysqlBackend(self.primary)
        backend.create(_ITEMS)
        self.source = backend.source("public.*")
        assert backend.settings is not None
        self.elsewhere: MysqlSettings = replace(backend.settings, port=self.replica.port)
        self._key = 0
        stream = MysqlSource(backend.settings).open_log(None, 1)
        self.landed = stream.start
        stream.close()

    def insert(self, server: MysqlServer | None = None, *before: str) -> str:
        """Insert a row with a key of its own; return the key."""
        self._key += 1
        (server or self.primary).run(*before, f"INSERT INTO public.t VALUES ({self._key})")
        return str(self._key)

    def land(self) -> None:
        """Insert a row and read the primary's log up to it."""
        self.insert()
        stream, count = self.source.open_log(self.landed, 1), 0
        while not count:
            piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=0.3)
            if piece:
                self.landed, count = piece.reached, piece.rows["kind"].to_pylist().count("row")
        stream.close()

    def find(self) -> LogPosition:
        """Return the position where the replica's log continues."""
        found = find_continuation(self.elsewhere, self.landed)
        assert found is not None and found.incarnation == 2 and found.landed is None
        return LogPosition.parse(found.token)

    def rows_behind(self, position: LogPosition) -> int:
        """Return how many rows events the replica's log has behind a position."""
        stream = MysqlSource(self.elsewhere).open_log(ResumePoint(2, position.token), 2)
        piece, deadline = None, time.monotonic() + 5
        while piece is None and time.monotonic() < deadline:
            piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=0.5)
        stream.close()
        return piece.rows["kind"].to_pylist().count("row") if piece else 0


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of(request.param, tmp_path_factory.mktemp(request.param), size=2) as cluster:
        yield cluster


@pytest.fixture
def followed(cluster: Cluster) -> Iterator[Followed]:
    """Return what has landed one row; afterwards the replica is the primary's again, without own transactions."""
    followed = Followed(cluster)
    followed.land()
    cluster.wait()
    yield followed
    cluster.reset()


def test_log_continues_behind_last_landed(followed: Followed) -> None:
    assert followed.rows_behind(followed.find()) == 0
    followed.insert()
    followed.replica.run("FLUSH BINARY LOGS")
    followed.insert()
    followed.cluster.wait()
    found = followed.find()
    assert found.gtids == LogPosition.parse(followed.landed.token).gtids and found.is_exact
    assert followed.rows_behind(found) == 2
    followed.land()
    followed.cluster.wait()
    assert followed.rows_behind(followed.find()) == 0
    followed.insert(followed.replica)  # its own, once it is promoted
    assert followed.rows_behind(followed.find()) == 1


def test_tagged_and_domain_gtids_continue(followed: Followed) -> None:
    own = "SET gtid_next = 'AUTOMATIC:night'" if followed.primary.flavour == "mysql" else "SET gtid_domain_id = 3"
    followed.insert(None, own)
    followed.land()
    followed.insert(None, own)
    followed.cluster.wait()
    assert followed.rows_behind(followed.find()) == 1


def test_server_without_landed_transaction_is_rejected(followed: Followed) -> None:
    followed.cluster.pause(followed.replica)
    followed.land()
    with pytest.raises(WrongServer, match=r"server .* lacks 1 transaction that landed: \S+; it has ") as rejected:
        followed.find()
    assert rejected.value.exit_code == ExitCode.CONFIGURATION
    followed.insert(followed.replica)
    with pytest.raises(WrongServer, match="lacks 1 transaction that landed"):
        followed.find()


def test_late_replica_continues_once_it_has_all(followed: Followed) -> None:
    """It accepts writes, as replicas do by default: what it lacks now is no verdict for good."""
    followed.cluster.pause(followed.replica)
    followed.land()
    with pytest.raises(WrongServer, match="lacks 1 transaction that landed") as rejected:
        followed.find()
    assert not isinstance(rejected.value, DivergedServer), "it is not recorded"
    followed.cluster.follow(followed.replica)
    followed.cluster.wait()
    assert followed.rows_behind(followed.find()) == 0


def test_read_only_replica_may_still_receive(followed: Followed) -> None:
    followed.cluster.pause(followed.replica)
    followed.land()
    followed.replica.run("SET GLOBAL read_only = ON")
    with pytest.raises(WrongServer, match="it is read-only, and may still receive them") as rejected:
        followed.find()
    followed.replica.run("SET GLOBAL read_only = OFF")
    assert not isinstance(rejected.value, DivergedServer)


@pytest.mark.parametrize("flushes", [False, True])
def test_errant_transactions_are_diverged(followed: Followed, flushes: bool) -> None:
    """Written on the replica itself, before it received what landed last; in the same file and in an earlier one."""
    if followed.replica.flavour == "mariadb":
        followed.replica.run("SET GLOBAL gtid_strict_mode = OFF")
    followed.cluster.pause(followed.replica)
    followed.insert(followed.replica)
    followed.insert(followed.replica)
    if flushes:
        followed.replica.run("FLUSH BINARY LOGS")
    followed.cluster.follow(followed.replica)
    followed.land()
    followed.cluster.wait_for(followed.replica, "SELECT 1 FROM public.t WHERE id = 4")
    with pytest.raises(DivergedServer, match=r"has 2 transactions among those that landed, which did not land: \S+"):
        followed.find()


def test_purged_log_that_did_not_land_is_gap(followed: Followed) -> None:
    followed.insert()
    followed.cluster.wait()
    purge(followed.replica)
    with pytest.raises(PositionLost, match=r"has removed from its log 1 transaction that did not land: \S+.*, a gap"):
        followed.find()
    followed.land()
    followed.cluster.wait()
    assert followed.rows_behind(followed.find()) == 0


def test_purged_log_that_landed_is_no_gap(followed: Followed) -> None:
    purge(followed.replica)
    followed.insert()
    followed.cluster.wait()
    assert followed.rows_behind(followed.find()) == 1


def test_landing_inside_transaction_is_gap(followed: Followed) -> None:
    followed.landed = replace(followed.landed, landed=Position(1, 7, 0))
    with pytest.raises(PositionLost, match="landing ends inside a transaction, or beside prepared ones"):
        followed.find()


def test_inexact_set_of_earlier_version_is_completed(followed: Followed) -> None:
    """Earlier versions noted what the server reports beside its log's end, without transactions that are committing."""
    position = LogPosition.parse(followed.landed.token)
    followed.landed = ResumePoint(1, replace(position, gtids="", is_exact=False).token)
    assert find_continuation(followed.elsewhere, followed.landed) is None
    followed.land()
    assert LogPosition.parse(followed.landed.token).gtids == executed(followed.primary)


def purge(server: MysqlServer) -> None:
    """Remove all files of the log but the newest."""
    server.run("FLUSH BINARY LOGS")
    deadline = time.monotonic() + 20
    while len(files := server.rows("SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline
        server.run(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        time.sleep(0.05)
