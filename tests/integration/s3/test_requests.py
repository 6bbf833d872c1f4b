"""Requests to object storage: what a commit and an open cost does not grow with the table's age."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.object_storage import Bench, is_commit
from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, append_frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import TableVersion
from dblake.base.lake.storage import Location, join
from dblake.landing.table import Landing
from tests.integration.s3.test_commits import landed, reached
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import S3Proxy

_MAX_COMMIT_REQUESTS = 8
_MAX_OPEN_REQUESTS = 45
"""With a checkpoint every 10 commits, each of at most 9 commits is read twice."""
_MAX_IDLE_REQUESTS = 200


def test_requests_of_landing_do_not_grow_with_commits(s3: S3Server) -> None:
    direct = location(s3)
    writer = Landing(join(direct, "landing"), "shop")
    with S3Proxy(s3.port) as proxy:
        counted = join(Location(direct, storage(proxy.port)), "landing")
        for batch in range(1, 38):
            if batch % 12:
                writer.commit(landed(batch), reached(batch))
                continue
            landing = Landing(counted, "shop")
            assert len(proxy.take()) <= _MAX_OPEN_REQUESTS
            landing.commit(landed(batch), reached(batch))
            assert len(proxy.take()) <= _MAX_COMMIT_REQUESTS
            writer = Landing(join(direct, "landing"), "shop")


def test_requests_of_frontier_do_not_grow_with_steps(s3: S3Server) -> None:
    """State adds a file with each step; the newest row is in the newest one."""
    direct, counts = location(s3), []
    with S3Proxy(s3.port) as proxy:
        counted = Paths(Location(direct, storage(proxy.port)), "shop")
        for batch in range(1, 23):
            append_frontier(Paths(direct, "shop"), Frontier(batch, Position(1, batch, 0)))
            if batch in (12, 22):
                proxy.take()
                assert read_frontier(counted).batch == batch
                counts.append(len(proxy.take()))
    assert counts[0] == counts[1]


def test_unchanged_table_is_polled_with_two_requests(s3: S3Server) -> None:
    direct = location(s3)
    with S3Proxy(s3.port) as proxy:
        version = TableVersion(Paths(Location(direct, storage(proxy.port)), "shop").frontier)
        assert version.read() is None
        for batch in range(1, 4):
            append_frontier(Paths(direct, "shop"), Frontier(batch, Position(1, batch, 0)))
            assert version.read() == batch
            proxy.take()
            assert version.read() == batch
            assert len(proxy.take()) == 2


@pytest.mark.slow
def test_requests_of_idle_jobs_do_not_grow_with_age(s3: S3Server, tmp_path: Path) -> None:
    """How many commits are newer than the newest checkpoint differs: their number is bounded, and left out here."""
    with S3Proxy(s3.port) as proxy:
        bench, counts = Bench(s3, proxy, tmp_path), []
        for commits in (110, 210):
            bench.age(commits)
            requests = bench.measure()
            assert max(map(len, requests.values())) <= _MAX_IDLE_REQUESTS
            counts.append({name: sum(not is_commit(one) for one in all_of) for name, all_of in requests.items()})
    assert {name: (young, old) for (name, young), old in zip(counts[0].items(), counts[1].values(), strict=True)
            if old > young} == {}
