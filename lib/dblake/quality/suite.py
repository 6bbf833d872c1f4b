"""What is expected of a frame, in great-expectations' words but without importing it.

A suite is a frame and what must hold for its rows. Ours make frames of facts: a row for each batch, mark, event or
key, and columns that are false where all is well, so that what an expectation finds is told by counts and a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must hold. ``type`` and ``kwargs`` are great-expectations' own.

    ``says`` is the same for people; ``column`` is the column it is about, as the source spells it. ``also`` has what
    a user's suite says beside it (severity, notes).
    """

    type: str
    kwargs: Mapping[str, Any]
    says: str = ""
    column: str | None = None
    also: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations of one table's rows.

    ``since`` and ``upto`` tell what the rows are of: landing batches after and up to, or for a state table nothing and
    its Delta version. None: all there is, each time.
    """

    name: str
    table: str
    rows: DataFrame
    expectations: Sequence[Expectation]
    since: int | None = None
    upto: int | None = None


def not_null(column: str, says: str, *, named: str | None = None) -> Expectation:
    """No NULL in a column of the frame; ``named`` is what people call it if that is another name."""
    return Expectation("expect_column_values_to_not_be_null", {"column": column}, says, named or column)


def one_of(column: str, values: Sequence[object], says: str) -> Expectation:
    """Nothing but these values, or NULL."""
    return Expectation(
        "expect_column_values_to_be_in_set", {"column": column, "value_set": list(values)}, says, column
    )


def never(column: str, says: str) -> Expectation:
    """A column of the frame that says of each row whether it breaks a rule; ``says`` is the rule."""
    return one_of(column, [False], says)


def unique(columns: Sequence[str], says: str) -> Expectation:
    """No two rows with the same values, not all of them NULL."""
    if len(columns) == 1:
        return Expectation("expect_column_values_to_be_unique", {"column": columns[0]}, says, columns[0])
    return Expectation(
        "expect_compound_columns_to_be_unique", {"column_list": list(columns)}, says, ", ".join(columns)
    )


def equal(first: str, second: str, says: str) -> Expectation:
    """The same in two columns; NULL in either is let pass."""
    kwargs = {"column_A": first, "column_B": second, "ignore_row_if": "either_value_is_missing"}
    return Expectation("expect_column_pair_values_to_be_equal", kwargs, says, f"{first}, {second}")


def at_least(column: str, least: int, says: str) -> Expectation:
    """No value below, or NULL."""
    return Expectation("expect_column_values_to_be_between", {"column": column, "min_value": least}, says, column)
