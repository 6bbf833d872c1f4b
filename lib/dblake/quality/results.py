"""What checks found, as rows of a table that remembers every run: counts and names, never a row's values.

A suite's ``upto`` in its newest run that found nothing wrong is where the next run may begin. Writing the rows is left
to the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

#: ``evaluated`` rows were looked at, ``unexpected`` were not as they must be; both NULL where counts make no sense.
#: ``fault`` says why an expectation could not be looked at; ``since`` and ``upto`` are the suite's.
RESULTS = StructType([
    StructField("run_id", StringType()),
    StructField("checked_at", TimestampType()),
    StructField("suite", StringType()),
    StructField("table", StringType()),
    StructField("expectation", StringType()),
    StructField("column", StringType()),
    StructField("says", StringType()),
    StructField("success", BooleanType()),
    StructField("evaluated", LongType()),
    StructField("unexpected", LongType()),
    StructField("fault", StringType()),
    StructField("kwargs", StringType()),
    StructField("since", LongType()),
    StructField("upto", LongType()),
])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one expectation."""

    suite: str
    table: str
    expectation: str
    column: str | None
    says: str
    success: bool
    evaluated: int | None
    unexpected: int | None
    fault: str | None
    kwargs: str
    since: int | None
    upto: int | None

    def __str__(self) -> str:
        """For a message: where, what, and how many."""
        where = f"{self.table}: {self.expectation}" + (f"({self.column})" if self.column else "")
        if self.fault:
            return f"{where} cannot be evaluated: {self.fault}"
        if self.unexpected is None:
            return where
        return f"{where}: {self.unexpected}" + ("" if self.evaluated is None else f" of {self.evaluated}")

    def row(self, run_id: str, checked_at: datetime) -> tuple[object, ...]:
        """As a row of RESULTS."""
        said = (getattr(self, name) for name in RESULTS.names[2:])
        return (run_id, checked_at, *said)


def passed(results: DataFrame) -> dict[tuple[str, str], int]:
    """For each suite and table up to where the newest run went in which all of it was as it must be."""
    runs = results.where(F.col("upto").isNotNull()).groupBy("run_id", "checked_at", "suite", "table").agg(
        F.bool_and("success").alias("all"), F.max("upto").alias("upto")
    )
    newest = runs.where("all").groupBy("suite", "table").agg(F.max_by("upto", "checked_at").alias("upto"))
    return {(row["suite"], row["table"]): row["upto"] for row in newest.collect()}


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that say that rows are wrong; not those that could not be evaluated."""
    return [outcome for outcome in outcomes if not outcome.success and outcome.fault is None]
