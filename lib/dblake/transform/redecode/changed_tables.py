"""Which tables' events redecode runs have changed: what state and readers must rebuild or fold again.

Place: beside the path, read from the redecode ledger that ``ledger`` writes. Guarantee: only runs that swapped events
count. Readers need no JVM.
"""

from __future__ import annotations

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import has_table

COUNTS = ("same", "different", "only_old", "only_new")


def read_changed_tables(paths: Paths) -> dict[str, dict[int, int]]:
    """Return, by table and run, the first batch with changed events or schemas; only of runs that swapped events."""
    if not has_table(paths.redecoded):
        return {}
    swapped = newest_batch(paths.events, Application.redecode(paths.source))
    differs = " OR ".join(f"{name} > 0" for name in COUNTS[1:])
    rows = query_rows(
        paths.redecoded, f"SELECT \"table\", run, min(batch) AS batch FROM t WHERE run <= {swapped} AND ({differs}) "
                         "AND of IN ('schemas', 'events') GROUP BY \"table\", run",
    )
    changed: dict[str, dict[int, int]] = {}
    for row in rows:
        changed.setdefault(row["table"], {})[row["run"]] = row["batch"]
    return changed
