"""What may be deleted of the tables about the tables: frontier, ledger of windows, results of ``check``.

Place: below ``maintenance.run``, which deletes. Guarantee: what a job still needs stays. Of the frontier that is the
newest row before the retention; of the ledger every window whose batch landing holds, the newest dump of each table,
and all gaps; of the results the newest run, and the newest one that each suite passed, where the next run begins. The
conditions compare no times, whose literals Spark and delta-rs spell differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import instant, query_rows, quoted

_MAX_RUNS = 1000
"""The most runs of ``check`` that one condition lists."""


def old_frontier_sql(paths: Paths, cutoff: datetime) -> str | None:
    """Return an SQL condition for the frontier's rows before the newest one at ``cutoff``; None if there is none."""
    kept = read_frontier(paths, until=cutoff)
    return f"batch < {kept.batch}" if kept.position else None


def old_windows_sql(paths: Paths) -> str | None:
    """Return an SQL condition for the ledger's windows of batches that landing has expired; None if it has all."""
    rows = query_rows(paths.landing, "SELECT min(batch) AS oldest FROM t")
    oldest = rows[0]["oldest"] if rows else None
    if oldest is None or oldest <= 1:
        return None
    newest = query_rows(
        paths.windows, 'SELECT last_value(dump_id ORDER BY incarnation, high_lsn) AS dump_id FROM t '
                       "WHERE began IS NOT NULL GROUP BY \"table\"",
    )
    kept = _listed(row["dump_id"] for row in newest)
    is_other = f" AND coalesce(dump_id, '') NOT IN ({kept})" if kept else ""
    return f"batch < {oldest} AND chunk_id IS NOT NULL{is_other}"


def old_results_sql(paths: Paths, cutoff: datetime) -> str | None:
    """Return an SQL condition for runs of ``check`` before ``cutoff`` that no later run needs; None if none is."""
    rows = query_rows(
        paths.check_results,
        "WITH runs AS (SELECT run_id, suite, \"table\", checked_at, bool_and(success) AS passed FROM t "
        "GROUP BY run_id, suite, \"table\", checked_at), "
        "needed AS (SELECT last_value(run_id ORDER BY checked_at) AS run_id FROM runs WHERE passed "
        "GROUP BY suite, \"table\" UNION SELECT last_value(run_id ORDER BY checked_at) AS run_id FROM runs) "
        f"SELECT DISTINCT run_id FROM runs WHERE checked_at < {instant(cutoff)} "
        f"AND run_id NOT IN (SELECT run_id FROM needed) LIMIT {_MAX_RUNS}",
    )
    return f"run_id IN ({_listed(row['run_id'] for row in rows)})" if rows else None


def _listed(values: Iterable[str | None]) -> str:
    return ", ".join(sorted(quoted(value) for value in values if value is not None))
