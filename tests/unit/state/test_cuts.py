"""Where steps of state may end: about so many batches on, never inside a transaction."""

from __future__ import annotations

import pytest
from pyspark.sql import Row

from dblake.state.steps import cuts


@pytest.mark.parametrize(
    ("case", "batches", "inside", "done", "expected"),
    [
        ("one step takes all", [1, 2, 3], [], 0, [3]),
        ("bounded steps", [1, 2, 3, 4, 5, 6, 7], [], 0, [3, 6, 7]),
        ("a transaction over a step's end belongs to the step", [1, 2, 3, 4, 5], [3], 0, [4, 5]),
        ("one that has not landed whole waits", [1, 2, 3, 4], [4], 0, [3]),
        ("also if it began batches ago", [1, 2, 3, 4, 5], [3, 4, 5], 0, [2]),
        ("and if there is nothing else", [8, 9], [8, 9], 7, []),
        ("goes on from where it was", [8, 9], [], 7, [9]),
        ("a batch without log events ends none", [1, 3], [], 0, [3]),
        ("nothing new", [], [], 5, []),
    ],
)
def test_cuts(case: str, batches: list[int], inside: list[int], done: int, expected: list[int]) -> None:
    ends = [Row(batch=batch, open=batch in inside) for batch in batches]
    assert cuts(ends, done, 3) == expected, case
