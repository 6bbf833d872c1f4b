"""Up to where the suites of ``check`` have passed, and whether anything has come since: no Spark.

Place: before ``run``, which evaluates the suites; ``selection`` starts at the same bounds. Guarantee: the answer is
"no" only if every suite has passed for the newest batch, or version, of its table. User suites cover all rows in every
run, so with one there is always work.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dblake.base.core.names import split_qualified
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_rows
from dblake.base.lake.schemas import read_schemas
from dblake.base.lake.tables import has_table, open_table
from dblake.operate.verification.findings import find_wrong
from dblake.operate.verification.ledger import newest_by_table

Bounds = dict[tuple[str, str], int]
"""By suite and table: a landing batch, of state a version."""


@dataclass(frozen=True, slots=True)
class LatestCheck:
    """The newest run of ``check``: when it began, and whether all its expectations passed."""

    began_at: datetime
    passed: bool


def read_latest_check(paths: Paths) -> LatestCheck | None:
    """Return the newest run; None before the first."""
    rows = query_rows(
        paths.check_results,
        "SELECT checked_at, bool_and(success) AS passed FROM t GROUP BY run_id, checked_at "
        "ORDER BY checked_at DESC LIMIT 1",
    )
    return LatestCheck(rows[0]["checked_at"].astimezone(UTC), rows[0]["passed"]) if rows else None


def read_passed_bounds(paths: Paths) -> Bounds:
    """Return the ``upto`` of each suite's newest run in which all its expectations passed."""
    rows = query_rows(
        paths.check_results,
        'WITH runs AS (SELECT suite, "table", checked_at, bool_and(success) AS passed, max(upto) AS upto FROM t '
        'WHERE upto IS NOT NULL GROUP BY run_id, checked_at, suite, "table") '
        'SELECT suite, "table", last_value(upto ORDER BY checked_at) AS upto FROM runs WHERE passed '
        'GROUP BY suite, "table"',
    )
    return {(row["suite"], row["table"]): row["upto"] for row in rows}


def has_unchecked_data(paths: Paths) -> bool:
    """Return False if every built-in suite has passed for all there is, and no table's newest verification failed."""
    if any(find_wrong(rounds).count for rounds in newest_by_table(paths).values()):
        return True
    passed = read_passed_bounds(paths)
    if any(passed.get(suite, 0) != batch for suite, batch in _newest_batches(paths).items()):
        return True
    application = Application.state(paths.source)
    for table in read_schemas(paths):
        path = paths.state(*split_qualified(table))
        if not has_table(path):
            continue
        state = open_table(path)
        if state.transaction_version(application) is not None and passed.get(("state", table)) != state.version():
            return True
    return False


def _newest_batches(paths: Paths) -> Bounds:
    """Return the newest batch that each suite of a shared table can cover."""
    reconcile = Application.reconcile(paths.source)
    landed = newest_batch(paths.landing, Application.capture(paths.source))
    events, ledger = newest_batch(paths.events, reconcile), newest_batch(paths.windows, reconcile)
    return {
        ("landing", "landing"): landed, ("events", "events"): events, ("order", "events"): events,
        ("watermarks", "windows"): ledger, ("windows", "windows"): ledger,
    }
