"""The columns of check results, which ``check --json`` shares."""

from __future__ import annotations

from datetime import UTC, datetime

from dblake.operate.quality.results import RESULTS, ExpectationResult

OUTCOME = ExpectationResult(
    suite="landing", table="landing", expectation="expect_column_values_to_be_in_set", column="commits",
    description="a batch is one commit", success=False, evaluated=9, unexpected=1, fault=None, kwargs="{}",
    since=0, upto=9,
)


def test_outcome_columns_are_those_of_the_table() -> None:
    assert list(OUTCOME.as_columns()) == RESULTS.names[2:]
    assert OUTCOME.as_columns()[RESULTS.names[6]] == "a batch is one commit"


def test_outcome_row_has_the_order_of_the_table() -> None:
    now = datetime.now(UTC)
    row = dict(zip(RESULTS.names, OUTCOME.as_row("run", now), strict=True))
    assert row == {"run_id": "run", "checked_at": now, **OUTCOME.as_columns()}
