"""Positions as each server writes them, and what is none."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import UsageError
from dblake.ingest.imports.position import parse_start
from dblake.landing.control import DumpStart


@pytest.mark.parametrize(
    ("source", "at", "snapshot", "expected"),
    [
        ("postgres", "1/0000000A", "5:9:7", DumpStart(2, (1 << 32) + 9, 0, "5:9:7")),
        ("mariadb", "mysql-bin.000042:1547", None, DumpStart(2, (42 << 36) + 1546, 0)),
        ("mysql", "a.b.1000000:4", None, DumpStart(2, (1_000_000 << 36) + 3, 0)),
    ],
)
def test_position_begins_before_its_own_events(
    source: str, at: str, snapshot: str | None, expected: DumpStart
) -> None:
    assert parse_start(source, 2, at, snapshot) == expected


@pytest.mark.parametrize(
    ("source", "at", "snapshot", "message"),
    [
        ("postgres", "1/2", None, "--snapshot is missing"),
        ("postgres", "1/2", "9:5:", "--snapshot is no snapshot"),
        ("postgres", "1/2/3", "5:9:", "--at is no LSN"),
        ("postgres", "mysql-bin.000042:4", "5:9:", "--at is no LSN"),
        ("mysql", "0/16B3748", None, "--at is no binlog position"),
        ("mariadb", "mysql-bin.000042:4", "5:9:", "--snapshot is for PostgreSQL"),
    ],
)
def test_invalid_position_is_rejected(source: str, at: str, snapshot: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_start(source, 1, at, snapshot)
