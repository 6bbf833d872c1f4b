"""Problems of tables: their next steps clear them."""

from __future__ import annotations

import pytest

from dblake.ingest.capture.stale_tables import StaleTable
from dblake.ingest.capture.table_life import KEYLESS, LifeState, TableLife
from dblake.operate.status.table_problems import dump_problems, life_problems, stale_table_problems

T = "public.t"


def life(state: LifeState, reason: str = "") -> dict[str, TableLife]:
    return {T: TableLife(T, state, "2026-01-01T00:00:00Z", "1/100", reason)}


@pytest.mark.parametrize(("lives", "expected"), [
    ({}, [("rewritten", f"dump start --table '{T}'")]),
    (life(LifeState.PENDING), [("pending", f"dump start --table '{T}'")]),
    (life(LifeState.SUSPENDED, "row security"), []),
    (life(LifeState.REMOVED, "dropped"), []),
], ids=["followed", "pending", "suspended", "removed"])
def test_stale_table_names_dump_unless_it_returns(
    lives: dict[str, TableLife], expected: list[tuple[str, str]]
) -> None:
    """A table that cannot be dumped now is dumped when it returns: `dump start` would fail."""
    found = stale_table_problems([StaleTable(T, "it was recreated", None)], [], lives)
    assert [(one["code"], one["next"]) for one in found] == expected


@pytest.mark.parametrize(("reason", "expected"), [
    (KEYLESS, "give it a primary key"),
    ("it is new, and capture.new_tables is ignore", f"dump start --table '{T}'"),
])
def test_incomplete_table_names_what_completes_it(reason: str, expected: str) -> None:
    assert [one["next"] for one in life_problems(life(LifeState.INCOMPLETE, reason))] == [expected]


@pytest.mark.parametrize(("lives", "expected"), [
    ({}, ["dump_failed"]), (life(LifeState.FOLLOWED), ["dump_failed"]), (life(LifeState.REMOVED, "dropped"), []),
    ({"public.other": life(LifeState.FOLLOWED)[T]}, []),
], ids=["earlier_version", "followed", "removed", "unknown"])
def test_failed_dump_of_table_that_is_gone_is_no_problem(lives: dict[str, TableLife], expected: list[str]) -> None:
    """No dump of it can be done, so a next step would only mislead."""
    dump = {"id": "1", "table": T, "state": "failed", "whole": True, "error": f"table {T} does not exist"}
    assert [one["code"] for one in dump_problems([dump], lives)] == expected
