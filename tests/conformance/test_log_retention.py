"""What ``status`` reads from a database: pending log, lost log, and the size of tables."""

from __future__ import annotations

import pytest

from dblake.base.core.schema import Column, TableSchema
from tests.conformance.script import Script
from tests.support.backends import Backend, MemoryBackend
from tests.support.lake import CaptureLake

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))
_WRITTEN = 200


@pytest.mark.parity
def test_unlanded_log_counts_as_behind(backend: Backend, lake: CaptureLake) -> None:
    backend.create(ITEMS)
    source = backend.source("public.*")
    lake.capture(source)
    before = source.log_retention(lake.reached.resume)
    assert before.behind is not None and not before.lost
    Script(backend, T).run([f"insert {number} {'x' * 100}" for number in range(_WRITTEN)])
    after = source.log_retention(lake.reached.resume)
    # The memory twin's log counts transactions, not bytes.
    minimum = _WRITTEN if isinstance(backend, MemoryBackend) else 100 * _WRITTEN
    assert after.behind is not None and after.behind >= before.behind + minimum
    assert after.kept is not None and after.kept >= after.behind
    lake.capture(source)
    landed = source.log_retention(lake.reached.resume)
    assert landed.behind is not None and landed.behind < after.behind


def test_log_is_not_lost_before_first_capture(backend: Backend) -> None:
    backend.create(ITEMS)
    assert not backend.source("public.*").log_retention(None).lost


def test_missing_log_is_lost(keeping_backend: Backend, lake: CaptureLake) -> None:
    keeping_backend.create(ITEMS)
    source = keeping_backend.source("public.*")
    lake.capture(source)
    keeping_backend.drop_slot()
    assert source.log_retention(lake.reached.resume).lost


def test_row_estimates_are_plausible(backend: Backend) -> None:
    backend.create(ITEMS)
    source = backend.source("public.*")
    Script(backend, T).run([f"insert {number} x" for number in range(_WRITTEN)])
    estimates = source.row_estimates([T])
    # Without statistics a database returns no estimate, or one that is too low.
    assert set(estimates) <= {T} and 0 <= estimates.get(T, 0) <= 2 * _WRITTEN
    assert source.row_estimates([]) == {}
