"""Run ``check``: evaluate the suites, store their results, build the pages.

Place: ``jobs.check`` calls it; ``quality.selection`` decides which suites cover which rows. Guarantees: results are
stored before the caller can report them. Every row of a suite is read before its expectations are evaluated, so a table
that cannot be read raises Spark's own error. The reaction to a failed expectation is left to the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from dblake.base.core.progress import Stage, stage
from dblake.base.lake.files import replace_folder
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.storage import join
from dblake.operate.quality.pending import read_passed_bounds
from dblake.operate.quality.report import QualityReport
from dblake.operate.quality.results import RESULTS, ExpectationResult
from dblake.operate.quality.selection import SuiteSelection
from dblake.operate.quality.suite import Suite
from dblake.operate.quality.user_suite import UserSuite
from dblake.operate.quality.validation import Validation
from dblake.transform.spark.session import Session, as_session, takes_all_work

_SMALL_ROWS = 100_000
"""Up to so many facts are evaluated in this process: some 10 MB."""


def run_check(
    spark: SparkSession | Session, paths: Paths, user_suites: Sequence[UserSuite], *, everything: bool = False,
    tables: Sequence[str] = (),
) -> QualityReport:
    """Evaluate all suites, or only the state and user suites of ``tables``, and store the results.

    ``everything`` ignores earlier runs and covers all rows. Raises UsageError for an unknown table and ConfigError for
    a user suite that does not fit its table.
    """
    passed = {} if everything else read_passed_bounds(paths)
    session = as_session(spark)
    selection = SuiteSelection(session, paths, user_suites, passed, tables)
    small_rows = 0 if takes_all_work(session) else _SMALL_ROWS
    run_id, started = uuid.uuid4().hex, datetime.now(UTC)
    validation = Validation(run_id, started)
    outcomes: list[ExpectationResult] = []
    suites = list(selection.suites())
    with stage("check", "suite", len(suites)) as progress:
        for suite in suites:
            progress.advance(0, note=f"{suite.table}: {suite.name}")
            outcomes += _evaluate(validation, suite, progress, small_rows)
    if not outcomes:
        return QualityReport([], None)
    results = session().createDataFrame([outcome.as_row(run_id, started) for outcome in outcomes], RESULTS)
    with commit_lock(paths.check_results):
        results.coalesce(1).write.format("delta").mode("append").save(paths.check_results)
    with TemporaryDirectory(prefix="dblake-pages-") as folder:
        validation.build_pages(Path(folder))
        replace_folder(Path(folder), paths.check_pages)
    return QualityReport(outcomes, join(paths.check_pages, "index.html"))


def _evaluate(
    validation: Validation, suite: Suite, progress: Stage, small_rows: int
) -> list[ExpectationResult]:
    """Read a suite's rows and evaluate it: an unreadable table raises Spark's own error, and fails no expectation."""
    facts = None if suite.has_values or not small_rows else _collect_small(suite.rows, small_rows)
    if facts is not None:
        progress.advance(1, len(facts))
        return validation.evaluate(suite, facts)
    rows = suite.rows.persist()
    try:
        progress.advance(1, rows.count())
        return validation.evaluate(suite, rows)
    finally:
        rows.unpersist()


def _collect_small(rows: DataFrame, most: int) -> pd.DataFrame | None:
    """Return the rows with whole numbers as such also beside NULLs; None if there are more than ``most``."""
    sample = rows.limit(most + 1).toArrow()
    return None if len(sample) > most else sample.to_pandas(integer_object_nulls=True)
