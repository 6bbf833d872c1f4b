"""Requests to object storage: what a commit and an open cost does not grow with the table's age."""

from __future__ import annotations

from dblake.lake.storage import Location, join
from dblake.landing.table import Landing
from tests.integration.s3.test_commits import landed, reached
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import S3Proxy

_MAX_COMMIT_REQUESTS = 8
_MAX_OPEN_REQUESTS = 45
"""With a checkpoint every 10 commits, each of at most 9 commits is read twice."""


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
