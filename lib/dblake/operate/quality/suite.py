"""Expectations and suites, in great-expectations' terms but without importing it.

A suite is a frame and the expectations that hold for its rows. The built-in suites evaluate frames of facts: one row
per batch, watermark, event or key, with columns that are true where a rule is violated. A failed expectation is
therefore reported by a count and a column name, never by a row's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Expectation:
    """One rule for the rows of a frame. ``type`` and ``kwargs`` are great-expectations' own.

    ``description`` is the rule in plain words; ``column`` is the column concerned, spelled as at the source. ``extra``
    holds further members of a user's expectation (severity, notes, meta).
    """

    type: str
    kwargs: Mapping[str, Any]
    description: str = ""
    column: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations for one table's rows.

    ``since`` and ``upto`` bound the rows: landing batches after ``since`` up to ``upto``; for a state table ``since``
    is None and ``upto`` its Delta version. Both are None for a suite that always covers all rows. ``has_values`` marks
    rows of the source instead of facts: their types are compared as Spark compares them.
    """

    name: str
    table: str
    rows: DataFrame
    expectations: Sequence[Expectation]
    since: int | None = None
    upto: int | None = None
    has_values: bool = False


def expect_not_null(column: str, description: str, *, source_name: str | None = None) -> Expectation:
    """Expect no NULL in a column of the frame; ``source_name`` is the column's name at the source if it differs."""
    return Expectation(
        "expect_column_values_to_not_be_null", {"column": column}, description, source_name or column
    )


def expect_one_of(column: str, values: Sequence[object], description: str) -> Expectation:
    """Expect only these values, or NULL."""
    return Expectation(
        "expect_column_values_to_be_in_set", {"column": column, "value_set": list(values)}, description, column
    )


def expect_no_violation(column: str, description: str) -> Expectation:
    """Expect false in a boolean column that is true in each row that violates the rule ``description``."""
    return expect_one_of(column, [False], description)


def expect_unique(columns: Sequence[str], description: str) -> Expectation:
    """Expect no two rows with equal values, unless all of them are NULL."""
    if len(columns) == 1:
        return Expectation("expect_column_values_to_be_unique", {"column": columns[0]}, description, columns[0])
    return Expectation(
        "expect_compound_columns_to_be_unique", {"column_list": list(columns)}, description, ", ".join(columns)
    )


def expect_equal(first: str, second: str, description: str) -> Expectation:
    """Expect equal values in two columns; rows with a NULL in either pass."""
    kwargs = {"column_A": first, "column_B": second, "ignore_row_if": "either_value_is_missing"}
    return Expectation("expect_column_pair_values_to_be_equal", kwargs, description, f"{first}, {second}")


def expect_at_least(column: str, minimum: int, description: str) -> Expectation:
    """Expect values of ``minimum`` or more, or NULL."""
    kwargs = {"column": column, "min_value": minimum}
    return Expectation("expect_column_values_to_be_between", kwargs, description, column)
