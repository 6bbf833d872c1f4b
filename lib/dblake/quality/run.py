"""Run ``check``: evaluate the suites, store their results, build the pages.

Place: ``jobs.check`` calls it; ``quality.selection`` decides which suites cover which rows. Guarantee: results are
stored before the caller can report them, and every row of a suite is read before its expectations are evaluated, so a
table that cannot be read raises Spark's own error. What to do about a failed expectation is left to the caller.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from dblake.core.progress import stage
from dblake.lake.files import replace_folder
from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.storage import join
from dblake.quality.pending import read_passed_bounds
from dblake.quality.report import Report
from dblake.quality.results import RESULTS, Outcome
from dblake.quality.selection import Selection
from dblake.quality.user_suite import UserSuite
from dblake.quality.validation import Validation


def run_check(
    spark: SparkSession, paths: Paths, user_suites: Sequence[UserSuite], *, everything: bool = False,
    tables: Sequence[str] = (),
) -> Report:
    """Evaluate all suites, or only the state and user suites of ``tables``, and store the results.

    ``everything`` ignores earlier runs and covers all rows. Raises UsageError for an unknown table and ConfigError for
    a user suite that does not fit its table.
    """
    passed = {} if everything else read_passed_bounds(paths)
    selection = Selection(spark, paths, user_suites, passed, tables)
    run_id, started = uuid.uuid4().hex, datetime.now(UTC)
    validation = Validation(run_id, started)
    outcomes: list[Outcome] = []
    suites = list(selection.suites())
    with stage("check", "suite", len(suites)) as progress:
        for suite in suites:
            progress.advance(0, note=f"{suite.table}: {suite.name}")
            rows = suite.rows.persist()
            try:
                # An unreadable table raises Spark's own error here instead of failing an expectation.
                progress.advance(1, rows.count())
                outcomes += validation.evaluate(suite)
            finally:
                rows.unpersist()
    if not outcomes:
        return Report([], None)
    results = spark.createDataFrame([outcome.as_row(run_id, started) for outcome in outcomes], RESULTS)
    with commit_lock(paths.check_results):
        results.coalesce(1).write.format("delta").mode("append").save(paths.check_results)
    with TemporaryDirectory(prefix="dblake-pages-") as folder:
        validation.build_pages(Path(folder))
        replace_folder(Path(folder), paths.check_pages)
    return Report(outcomes, join(paths.check_pages, "index.html"))
