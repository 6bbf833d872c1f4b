"""How an incarnation of the log begins, as the ledger of windows records it: behind a gap, or as a continuation.

Place: between reconcile, which appends the ledger's rows behind the events, and readers of events, which meet the first
event of an incarnation and ask. Guarantee: an incarnation without a row counts as one behind a gap.
"""

from __future__ import annotations

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import find_table

GAP = "gap"
"""Status of an incarnation before which log is missing; dumps make up for it."""
MOVED = "moved"
"""Status of an incarnation in which another server continues the log; nothing is missing before it."""


def is_continued(paths: Paths, left: int, reached: int) -> bool:
    """Return True if no log is missing between two incarnations, the earlier one first."""
    rows = query_rows(
        paths.windows, f"SELECT incarnation FROM t WHERE status = '{MOVED}' AND incarnation > {left} "
                       f"AND incarnation <= {reached}",
    )
    return {row["incarnation"] for row in rows} == set(range(left + 1, reached + 1))


def is_recorded(paths: Paths, batch: int) -> bool:
    """Return True if the ledger has the rows of all batches up to one; also without a ledger."""
    table = find_table(paths.windows)
    return table is None or (table.transaction_version(Application.reconcile(paths.source)) or 0) >= batch
