"""A random operator on a live system: the short form, and what its comparison detects.

The long form is ``./spark-submit.sh stress --operations``. ``DBLAKE_SEED`` repeats a run.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.effort import EFFORT, choose_seed
from tests.support.operations.rounds import canonical_text, find_difference, run_rounds

STATE: list[dict[str, Any]] = [{"id": 1, "n": 5, "_missing": []}, {"id": 2, "n": None, "_missing": []}]


@pytest.mark.parametrize(("source", "found"), [
    ([{"id": "1", "n": "5"}, {"id": "2", "n": None}], ""),
    ([{"n": "5", "id": "1"}, {"n": None, "id": "2"}], ""),
    ([{"id": "1"}, {"id": "2"}], ""),
    ([{"id": "1", "n": "5"}], "0 rows only in the source, 1 only in state"),
    ([{"id": "1", "n": "5"}, {"id": "2", "n": "0"}], "1 rows only in the source, 1 only in state"),
    ([{"id": "1", "m": "5"}, {"id": "2", "m": None}], "state lacks the columns ['m']"),
    ([], "0 rows only in the source, 2 only in state"),
])
def test_difference_of_tables_is_found(source: list[dict[str, str | None]], found: str) -> None:
    assert find_difference(source, STATE).startswith(found)
    assert bool(find_difference(source, STATE)) is bool(found)


@pytest.mark.parametrize(("key", "found"), [("2", ""), ("3", "1 rows only in the source, 1 only in state")])
def test_value_that_row_names_as_missing_is_no_difference(key: str, found: str) -> None:
    state = [STATE[0], STATE[1] | {"_missing": ["n"]}]
    difference = find_difference([{"id": "1", "n": "5"}, {"id": key, "n": "7"}], state)
    assert difference.startswith(found)
    assert bool(difference) is bool(found)


@pytest.mark.parametrize(("one", "other"), [
    ("1.50", 1.5), ("100", "1E+2"), ("2026-01-02 03:04:05.120000", "2026-01-02 03:04:05.12"),
    ("2026-01-02 03:04:05.000000", "2026-01-02 03:04:05"), (None, None), ("-0", 0),
])
def test_values_of_equal_meaning_have_one_text(one: Any, other: Any) -> None:
    assert canonical_text(one) == canonical_text(other)


def run(kind: str, rounds: int) -> None:
    seed = choose_seed()
    done, _ = run_rounds(kind, rounds, seed, print)
    assert [str(one) for one in done if one.outcome == "failed"] == []
    assert len(done) == rounds


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_tables_stay_equal_or_named_in_many_rounds(kind: str) -> None:
    run(kind, 3 * EFFORT)
