"""The ends of state's steps: bounded in batches, never inside a transaction."""

from __future__ import annotations

import pytest

from dblake.transform.state.steps import cuts


@pytest.mark.parametrize(
    ("case", "batches", "inside", "done", "expected"),
    [
        ("one step takes all", [1, 2, 3], [], 0, [3]),
        ("bounded steps", [1, 2, 3, 4, 5, 6, 7], [], 0, [3, 6, 7]),
        ("transaction across a step's end", [1, 2, 3, 4, 5], [3], 0, [4, 5]),
        ("incomplete transaction", [1, 2, 3, 4], [4], 0, [3]),
        ("incomplete transaction of several batches", [1, 2, 3, 4, 5], [3, 4, 5], 0, [2]),
        ("incomplete transaction alone", [8, 9], [8, 9], 7, []),
        ("resumed", [8, 9], [], 7, [9]),
        ("batch without log events", [1, 3], [], 0, [3]),
        ("nothing new", [], [], 5, []),
    ],
)
def test_cuts_end_steps_between_transactions(
    case: str, batches: list[int], inside: list[int], done: int, expected: list[int]
) -> None:
    ends = [{"batch": batch, "open": batch in inside} for batch in batches]
    assert cuts(ends, done, 3) == expected, case
