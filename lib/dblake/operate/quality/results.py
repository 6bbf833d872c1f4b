"""The results of ``check`` as rows of a Delta table that keeps every run: counts and names, never a row's values.

Place: behind ``quality.validation``. The ``upto`` of a suite's newest passed run is where the next run starts:
``quality.pending`` reads it. Writing the table is left to ``quality.run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

_DESCRIPTION = "says"
"""The column that holds an expectation's description, in the table and in ``check --json``."""

#: ``evaluated`` counts the rows evaluated, ``unexpected`` the rows that violate the expectation; both are NULL where
#: counts make no sense. ``fault`` is the reason why an expectation could not be evaluated; ``since`` and ``upto`` are
#: the suite's.
RESULTS = StructType([
    StructField("run_id", StringType()),
    StructField("checked_at", TimestampType()),
    StructField("suite", StringType()),
    StructField("table", StringType()),
    StructField("expectation", StringType()),
    StructField("column", StringType()),
    StructField(_DESCRIPTION, StringType()),
    StructField("success", BooleanType()),
    StructField("evaluated", LongType()),
    StructField("unexpected", LongType()),
    StructField("fault", StringType()),
    StructField("kwargs", StringType()),
    StructField("since", LongType()),
    StructField("upto", LongType()),
])


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """The result of one expectation; its fields are RESULTS' columns, ``description`` under that table's own name."""

    suite: str
    table: str
    expectation: str
    column: str | None
    description: str
    success: bool
    evaluated: int | None
    unexpected: int | None
    fault: str | None
    kwargs: str
    since: int | None
    upto: int | None

    def __str__(self) -> str:
        """Return table, expectation, column and counts, for a message."""
        subject = f"{self.table}: {self.expectation}" + (f"({self.column})" if self.column else "")
        if self.fault:
            return f"{subject} cannot be evaluated: {self.fault}"
        if self.unexpected is None:
            return subject
        return f"{subject}: {self.unexpected}" + ("" if self.evaluated is None else f" of {self.evaluated}")

    def as_columns(self) -> dict[str, object]:
        """Return the values by RESULTS' column names, without run_id and checked_at."""
        return {_DESCRIPTION if name == "description" else name: value for name, value in asdict(self).items()}

    def as_row(self, run_id: str, checked_at: datetime) -> tuple[object, ...]:
        """Return the values as a row of RESULTS."""
        columns = self.as_columns()
        return (run_id, checked_at, *(columns[name] for name in RESULTS.names[2:]))


def select_failed(outcomes: Sequence[ExpectationResult]) -> list[ExpectationResult]:
    """Return the outcomes with wrong rows, without the expectations that could not be evaluated."""
    return [outcome for outcome in outcomes if not outcome.success and outcome.fault is None]
