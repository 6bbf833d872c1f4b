"""The newest verification of each table, for ``status``: its age, its coverage, and what differs.

Place: between the verification ledger and ``status.report``. Reads the ledger without a JVM. When a verification counts
as too old is configured; a difference is a problem always.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.operate.status.problem import problem
from dblake.operate.verification.findings import find_wrong
from dblake.operate.verification.ledger import last_whole, newest_by_table

_SECONDS_PER_HOUR = 3600


def read_verifications(paths: Paths) -> list[dict[str, Any]]:
    """Return one entry per verified table: when, how old in seconds, which share of the rows read, what differs.

    ``coverage`` is the share of the rows read that no change touched; ``sampled`` if part of the table was not read.
    """
    now, entries = datetime.now(UTC), []
    for table, rounds in sorted(newest_by_table(paths).items()):
        whole = last_whole(rounds)
        rows = whole.rows_compared + whole.rows_skipped
        entries.append({
            "table": table, "verified_at": whole.verified_at.isoformat(timespec="seconds"),
            "age_seconds": round((now - whole.verified_at).total_seconds(), 1),
            "position": whole.position, "rows_compared": whole.rows_compared, "rows_skipped": whole.rows_skipped,
            "coverage": round(whole.rows_compared / rows, 4) if rows else 1.0, "sampled": whole.sampled,
            "differences": find_wrong(rounds).count,
        })
    return entries


def verification_problems(
    entries: Iterable[dict[str, Any]], tables: Iterable[str], max_age_seconds: float | None
) -> list[dict[str, Any]]:
    """Return a problem for each table that differs, and each of ``tables`` without a verification that is new enough.

    Age is no problem if ``max_age_seconds`` is None.
    """
    by_table = {entry["table"]: entry for entry in entries}
    problems = [
        problem("differs", table, f"{entry['differences']:,} rows of state differ from the source",
                f"verify --table '{table}' --repair --wait")
        for table, entry in by_table.items() if entry["differences"]
    ]
    for table in sorted(tables) if max_age_seconds is not None else ():
        entry = by_table.get(table)
        if entry is None:
            problems.append(problem("unverified", table, "it has never been verified", f"verify --table '{table}'"))
        elif entry["age_seconds"] > max_age_seconds:
            hours = entry["age_seconds"] / _SECONDS_PER_HOUR
            problems.append(problem("unverified", table, f"its newest verification is {hours:,.1f} h old",
                                    f"verify --table '{table}'"))
    return problems
