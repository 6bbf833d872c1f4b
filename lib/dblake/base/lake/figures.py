"""Read from a table's Delta log how many rows it has, and when they last changed. No file is read."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow.compute as pc

from dblake.base.lake.commits import COMPACTS
from dblake.base.lake.tables import find_table, list_files

_COMMITS = 10
"""So many of the newest commits are searched for a change."""
_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES")


def count_rows(path: str) -> tuple[int | None, datetime | None]:
    """Return a table's rows, by its files' statistics, and the time of the newest commit that is no maintenance.

    Both are None without a table.
    """
    table = find_table(path)
    if table is None:
        return None, None
    files = list_files(table)
    rows = (pc.sum(files["num_records"]).as_py() or 0) if files.num_rows else 0
    changes = (
        commit for commit in table.history(_COMMITS)
        if commit.get("operation") not in _MAINTENANCE and COMPACTS not in commit
    )
    newest = next(changes, None)
    return rows, None if newest is None else datetime.fromtimestamp(newest["timestamp"] / 1000, UTC)
