"""Preflight of the warehouse: a store that lacks what the lake rests on is rejected by name."""

from __future__ import annotations

import pytest

from dblake.base.lake.preflight import check_storage
from dblake.base.lake.storage import Location
from tests.support.s3 import S3Server, location, storage
from tests.support.s3_proxy import Fault, Rule, S3Proxy

NAMES = ["storage write", "storage read", "storage conditional write", "storage delete"]


def test_preflight_of_sound_store_passes_and_leaves_nothing(s3: S3Server) -> None:
    warehouse = location(s3)
    assert [(check.check, check.ok) for check in check_storage(warehouse)] == [(name, True) for name in NAMES]
    assert [key for key in s3.keys(warehouse.split("/")[2]) if not key.endswith("/")] == []


@pytest.mark.parametrize(
    ("rule", "failed", "detail"),
    [
        (Rule(Fault.IGNORED_CONDITION), "storage conditional write", "it ignores If-None-Match"),
        (Rule(Fault.DENIED, "^PUT"), "storage write", "object storage denied access"),
        (Rule(Fault.DENIED, "^GET"), "storage read", "object storage denied access"),
        (Rule(Fault.DENIED, "^(DELETE|POST)"), "storage delete", "object storage denied access"),
        (Rule(Fault.EXPIRED), "storage write", "the credentials of object storage have expired"),
    ],
    ids=["ignores-condition", "no-write", "no-read", "no-delete", "expired"],
)
def test_preflight_names_what_store_lacks(s3: S3Server, rule: Rule, failed: str, detail: str) -> None:
    with S3Proxy(s3.port) as proxy:
        warehouse = location(s3, port=proxy.port)
        proxy.set(rule)
        checks = check_storage(warehouse)
    assert [check.check for check in checks if not check.ok] == [failed]
    assert detail in checks[-1].detail
    assert checks[-1].fix


def test_preflight_of_missing_bucket_names_it(s3: S3Server) -> None:
    missing = check_storage(Location("s3://no-such-bucket/lake", storage(s3.port)))[-1]
    assert (missing.ok, missing.detail) == (
        False, f"the bucket of the warehouse does not exist (http://127.0.0.1:{s3.port})"
    )


@pytest.mark.slow
def test_preflight_of_unreachable_store_names_endpoint() -> None:
    unreachable = check_storage(Location("s3://bucket/lake", storage(1)))[-1]
    assert not unreachable.ok
    assert "endpoint" in unreachable.fix


def test_preflight_of_local_warehouse_checks_no_storage() -> None:
    assert check_storage("/warehouse") == []
